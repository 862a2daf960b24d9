"""The decision benchmark: it measures decisions that are made and booked, and leaves no slot."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.workbench.decision import (
    BACKGROUND,
    DecisionBenchConfig,
    RouterCell,
    Workload,
    run,
)


def test_the_workload_has_something_to_find_and_something_to_weigh() -> None:
    workload = Workload(tokens=512, workers=8, block_size=32)
    assert all(prompt.dtype == np.uint32 and len(prompt) == 512 for prompt in workload.prompts)
    with closing(RouterCell(workload, "forecast", as_list=False)) as cell:
        router: Any = cell._router
        overlaps = router.overlaps(workload.prompts[0])
        assert sorted(overlaps.values()) == [8, 8]  # half of the prompt, on a quarter of the fleet
        assert sum(view.active_requests for view in router.workers()) == BACKGROUND * 8
        before = {view.worker: view.active_requests for view in router.workers()}
        figures = cell.measure(20)
        assert 0 < figures["decision"] <= figures["decision_p99"]
        assert 0 < figures["release"] <= figures["release_p99"]
        assert {view.worker: view.active_requests for view in router.workers()} == before


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "decision.json"
    config = DecisionBenchConfig(
        tokens=(128, 300), workers=(2, 5), decisions=10, rounds=2, json=str(out)
    )
    assert run(config) == 0
    assert "release" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert [(r["tokens"], r["workers"]) for r in content["results"]] == [
        (128, 2),
        (128, 5),
        (300, 2),
        (300, 5),
    ]
    for result in content["results"]:
        assert 0 < result["decision_array_us"]["min"] <= result["decision_array_us"]["median"]
        assert 0 < result["release_list_us"]["median"] <= result["release_list_us"]["p99"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_size", 0),
        ("decisions", 0),
        ("rounds", -1),
        ("tokens", ()),
        ("tokens", (0,)),
        ("workers", (8, 0)),
    ],
)
def test_bad_settings_are_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        DecisionBenchConfig(**{key: value})
    assert caught.value.key == key
