"""The benchmark of selections over the wire: it runs from end to end."""

import json
import os
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError, RouterError
from dynamo_router.bench.workbench.selection import SelectionBenchConfig, run

PEER = os.environ.get("DYNAMO_PEER")


def test_a_short_run(tmp_path: Path) -> None:
    target = tmp_path / "selection.json"
    config = SelectionBenchConfig(
        requests=4, rounds=2, workers=2, concurrency=(1, 2), dynamo=PEER, json=str(target)
    )
    assert run(config) == 0
    result = json.loads(target.read_text())
    ways = ["router", "dynamo"] if PEER else ["router"]
    found = [(row["concurrency"], row["name"]) for row in result["rows"]]
    assert found == [(c, way) for c in (1, 2) for way in ways]
    for row in result["rows"]:
        assert row["cpu_us_per_request"] > 0 and row["requests_per_s"] > 0
        assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p99"]
    assert [each["concurrency"] for each in result["ratios"]] == ([1, 2] if PEER else [])


@pytest.mark.parametrize("key", ["requests", "rounds", "workers", "tokens"])
def test_nonsense_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SelectionBenchConfig(**{key: 0})
    assert caught.value.key == key


def test_loads_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency"):
        SelectionBenchConfig(concurrency=(4, 0))


def test_a_python_without_dynamo_is_told() -> None:
    config = SelectionBenchConfig(
        requests=1, rounds=1, workers=1, concurrency=(1,), dynamo="/bin/false"
    )
    with pytest.raises(RouterError, match="Dynamo ended while it started"):
        run(config)
