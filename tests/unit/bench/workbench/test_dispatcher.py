"""The dispatcher's benchmark: whole requests through a whole pool, without a transport."""

import gc
import json

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.workbench.dispatcher import DispatcherBenchConfig, Parts, run


def test_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    config = DispatcherBenchConfig(
        requests=5, rounds=2, workers=2, tokens=40, output_tokens=3, json="-"
    )
    thresholds = gc.get_threshold()
    assert run(config) == 0
    assert gc.get_threshold() == thresholds and not gc.get_freeze_count()
    result = json.loads(capsys.readouterr().out)  # and nothing else
    for key in ("request_us", "routed_us"):
        assert 0 < result[key]["min"] <= result[key]["median"] <= result[key]["max"]
    assert result["token_us"]["min"] <= result["token_us"]["max"]
    assert result["config"]["requests"] == 5


async def test_what_is_measured_is_served_and_leaves_nothing() -> None:
    parts = Parts(DispatcherBenchConfig(workers=2, tokens=40, output_tokens=3))
    pool = parts.pool
    try:
        await pool.wait_for_probes(10.0)
        assert pool.states == {"ready": 2}
        await parts.short(4)
        assert parts.messages == 4 * 2
        await parts.long(4)
        assert parts.messages == 4 * 2 + 4 * 4
        await parts.routed(4)
        assert parts.messages == 4 * 2 + 4 * 4
        served = [view.active_requests for view in pool.router.workers()]
        assert served == [0, 0] and not pool.dispatcher.in_flight
        assert pool.dashboard.observer.last == 8
    finally:
        await pool.close()


@pytest.mark.parametrize("key", ["requests", "rounds", "workers", "tokens", "output_tokens"])
def test_nonsense_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DispatcherBenchConfig(**{key: 0})
    assert caught.value.key == key
