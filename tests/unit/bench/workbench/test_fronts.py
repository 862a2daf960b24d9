"""The benchmark of several processes: it runs from end to end, and its numbers are what they
claim."""

import json
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.workbench.fronts import LOADS, FrontsBenchConfig, Rounds, run


def test_a_short_run(tmp_path: Path) -> None:
    target = tmp_path / "fronts.json"
    config = FrontsBenchConfig(requests=48, rounds=1, workers=1, connections=4, json=str(target))
    assert run(config) == 0
    result = json.loads(target.read_text())
    found = {(row["fronts"], row["concurrency"], row["tokens"]) for row in result["rows"]}
    assert found == {(fronts, *load) for fronts in (1, 2) for load in LOADS}
    for row in result["rows"]:
        used = row["cpu_us_per_request"]
        assert set(used) == ({"serve"} if row["fronts"] == 1 else {"parent", "front 0", "front 1"})
        assert row["ceiling_requests_per_s"] == pytest.approx(1e6 / max(used.values()), rel=0.01)
        assert row["cpu_us_per_request_all"] == pytest.approx(sum(used.values()), rel=0.01)
        assert row["requests_per_s"] > 0 and row["latency_p50_ms"] > 0
        if row["fronts"] == 1:
            assert row["ceiling_ratio"] == row["cpu_ratio"] == 1
    ratios = [row["ceiling_ratio"] for row in result["rows"] if row["fronts"] == 2]
    assert result["worst_ceiling_ratio"] == min(ratios)


def test_the_busiest_process_of_each_round_is_the_ceiling() -> None:
    rounds = Rounds(cpu_us={"front 0": [50.0, 200.0], "front 1": [100.0, 100.0]})
    assert rounds.ceilings == [10_000, 5_000]
    assert rounds.sums == [150, 300]


@pytest.mark.parametrize("key", ["requests", "rounds", "workers", "connections", "fronts"])
def test_nonsense_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FrontsBenchConfig(**{key: 0})
    assert caught.value.key == key
