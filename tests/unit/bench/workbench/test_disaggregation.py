"""Engines apart or not, side by side: deterministic, in virtual time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.evaluation.splits import split_of
from dynamo_router.bench.workbench.disaggregation import (
    ALWAYS,
    CONDITIONAL,
    LONG,
    OFF,
    DisaggBenchConfig,
    measure_cells,
    rows_of,
    run,
    traffic_of,
)

SMALL = DisaggBenchConfig(
    split="train", families=("coders",), requests=300, prefill_workers=(4,), loads=(1.0,)
)


def test_a_split_has_documents_above_20_000_tokens() -> None:
    long = traffic_of(split_of("train"))[LONG]
    assert long.prefix_tokens > 20_000


def test_conditional_is_as_good_as_the_better_of_the_others() -> None:
    """Long sessions whose decode workers are short of time: neither all remote nor all local."""
    cells = list(measure_cells(SMALL))
    assert [each.mode for each in cells] == [OFF, ALWAYS, CONDITIONAL]
    off, always, conditional = cells
    assert (off.remote, always.remote) == (0.0, 1.0) and 0.2 < conditional.remote < 1.0
    (row,) = rows_of(cells)
    assert row["against"] >= 0.97
    assert conditional.itl_p99_ms < 0.7 * off.itl_p99_ms


def test_the_command_writes_cells_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, picture = tmp_path / "found.json", tmp_path / "found.png"
    small = replace(SMALL, requests=60, json=str(target), plot=str(picture))
    assert run(replace(small, search=replace(small.search, capacity=True))) == 0
    document = json.loads(target.read_text())
    assert len(document["cells"]) == 3 and document["benchmark"] == "disagg"
    assert all(cell["capacity"] > 0 for cell in document["cells"])
    assert picture.read_bytes()[1:4] == b"PNG"
    assert "capacity" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("requests", 0),
        ("workers", 1),
        ("num_gpu_blocks", 0),
        ("prefill_workers", (8,)),
        ("prefill_workers", (0,)),
        ("loads", (0.0,)),
        ("loads", (float("nan"),)),
        ("families", ("x",)),
    ],
)
def test_what_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        replace(SMALL, **{key: value})  # type: ignore[arg-type]
