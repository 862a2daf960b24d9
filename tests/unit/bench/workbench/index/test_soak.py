"""The soak: its traffic keeps a bounded set of blocks, and it sees memory that grows."""

import json
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.workbench.index.command import run
from dynamo_router.bench.workbench.index.config import IndexBenchConfig
from dynamo_router.bench.workbench.index.soak import _is_flat, measure_soak, soak_table


def test_a_short_soak_applies_every_event_and_keeps_the_budget() -> None:
    result = measure_soak(20_000, 1, chains=200, workers=4)
    unbounded, bounded = result["phases"]
    for phase in result["phases"]:
        assert sum(window["events"] for window in phase["windows"]) == 10_000
        assert all(window["rss_bytes"] > 0 for window in phase["windows"])
    assert max(window["blocks"] for window in unbounded["windows"]) <= 200 * 63 + 256 * 8
    assert unbounded["windows"][-1]["evicted_blocks"] == 0
    assert all(window["blocks"] <= result["budget"] for window in bounded["windows"])
    assert bounded["windows"][-1]["evicted_blocks"] > 0
    tree_bytes = [window["memory_bytes"] for window in unbounded["windows"]]
    assert max(tree_bytes[5:]) <= 1.5 * max(tree_bytes[:5])
    assert soak_table(result).row_count == 4


def test_the_command_soaks_and_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "soak.json"
    code = run(IndexBenchConfig(soak=2000, json=str(target)))
    written = json.loads(target.read_text())
    assert code == (0 if written["flat"] else 1) and written["events"] == 2000
    assert "soak" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="must be at least 0"):
        IndexBenchConfig(soak=-1)


def test_growing_memory_is_not_called_flat() -> None:
    def windows(*sizes: int) -> list[dict[str, int]]:
        return [{"memory_bytes": size, "rss_bytes": 100} for size in sizes]

    assert _is_flat(windows(90, 100, 100, 100, 100, 104, 98, 103))
    assert not _is_flat(windows(90, 100, 102, 104, 106, 108, 110, 120))
