"""The benchmark of several fronts: it runs from end to end, and its numbers are what they claim."""

import json
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.fronts import FrontsBenchConfig, Rounds, run


def test_a_short_run(tmp_path: Path) -> None:
    target = tmp_path / "fronts.json"
    config = FrontsBenchConfig(
        requests=8, rounds=1, workers=1, concurrency=2, connections=4, json=str(target)
    )
    assert run(config) == 0
    result = json.loads(target.read_text())
    one, two = result["rows"]
    assert (one["fronts"], two["fronts"]) == (1, 2)
    assert set(one["cpu_us_per_request"]) == {"serve"}
    assert set(two["cpu_us_per_request"]) == {"decider", "front 0", "front 1", "parent"}
    for row in (one, two):
        used = row["cpu_us_per_request"].values()
        assert row["ceiling_requests_per_s"] == pytest.approx(1e6 / max(used), rel=0.01)
        assert row["cpu_us_per_request_all"] == pytest.approx(sum(used), rel=0.01)
        assert row["requests_per_s"] > 0 and row["latency_p50_ms"] > 0
    assert result["ceiling_ratio"] == pytest.approx(
        two["ceiling_requests_per_s"] / one["ceiling_requests_per_s"], rel=0.02
    )


def test_the_busiest_process_of_each_round_is_the_ceiling() -> None:
    rounds = Rounds(cpu_us={"decider": [50.0, 200.0], "front 0": [100.0, 100.0]})
    assert rounds.ceilings == [10_000, 5_000]


@pytest.mark.parametrize("key", ["requests", "rounds", "workers", "tokens", "fronts"])
def test_nonsense_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FrontsBenchConfig(**{key: 0})
    assert caught.value.key == key
