"""The benchmark of synthesized traces, on all families of a split."""

import json
from pathlib import Path

import pytest

from dynamo_router.bench.evaluation.splits import FAMILIES
from dynamo_router.bench.workbench.fidelity import FidelityConfig, run


def test_a_row_for_each_family_says_how_far_its_traces_are_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # so that no name is cut
    target = tmp_path / "split.json"
    assert run(FidelityConfig(split="validate", requests=60, seeds=1, json=str(target))) == 0
    results = json.loads(target.read_text())["results"]
    assert [each["family"] for each in results[::4]] == list(FAMILIES)
    assert {each["trace_seed"] for each in results} == {201, 202, 203, 204}
    offs = [each["deviations"]["input length mean"] for each in results]
    assert len(set(offs)) > 30 and sum(abs(off) < 0.2 for off in offs) > 40
    shown = capsys.readouterr().out
    assert all(family in shown for family in FAMILIES)
