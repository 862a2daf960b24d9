"""The admission queue in virtual time: nobody is lost, order holds, and overload ends."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.simulation.config import SimulationConfig
from dynamo_router.bench.simulation.prepared_trace import SimulatedTrace
from dynamo_router.bench.simulation.request_log import REJECTED, SERVED, RequestLog
from dynamo_router.bench.simulation.simulation import FleetSpec, Simulation
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.traces.trace import TraceRequest, read_trace
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.router.admission.limits import QUEUE_POLICIES, AdmissionConfig

ENGINE = EngineConfig(num_gpu_blocks=2000, max_num_batched_tokens=2048)


def run(
    rows: list[TraceRequest],
    *,
    workers: int = 2,
    speedup: float = 1.0,
    seed: int = 0,
    **knobs: object,
) -> RequestLog:
    admission = AdmissionConfig(**knobs)  # type: ignore[arg-type]
    config = KvRouterConfig(admission=admission)
    trace = SimulatedTrace(rows, block_size=64, arrival_speedup=speedup, seed=seed)
    fleet = FleetSpec(workers=workers, engine=ENGINE)
    simulation = Simulation(
        trace, fleet, lambda clock: KvRouter(config, clock=clock, seed=seed), seed=seed
    )
    log = simulation.run()
    assert not simulation.fleet.is_busy
    assert all(view.active_requests == 0 for view in simulation.router.workers())
    return log


@given(
    speedup=st.sampled_from([0.5, 5.0, 1e6]),
    threshold=st.sampled_from([0.0, 0.5, 2.0]),
    policy=st.sampled_from(QUEUE_POLICIES),
    limit=st.sampled_from([3, 10_000]),
    seed=st.integers(0, 9),
)
@settings(max_examples=20, deadline=None)
def test_every_request_is_served_or_turned_away_for_want_of_places(
    speedup: float, threshold: float, policy: str, limit: int, seed: int
) -> None:
    rows = list(read_trace(SAMPLE_TRACE, limit=40))
    log = run(
        rows,
        speedup=speedup,
        seed=seed,
        queue_threshold=threshold,
        queue_policy=policy,
        queue_limit=limit,
    )
    served = log.status == SERVED
    assert set(log.status[~served].tolist()) <= {REJECTED}
    assert log.queue_max <= limit
    assert served.all() or log.queue_max == limit
    waited = log.queued_s[served]
    assert (waited >= 0).all()
    assert (log.first_s[served] > log.arrival_s[served] + waited).all()


def burst(*lengths: int) -> list[TraceRequest]:
    """Prompts that share nothing, all at once."""
    return [
        TraceRequest(0.0, length, 2, tuple(range(100 * i, 100 * i - (-length // 512))))
        for i, length in enumerate(lengths)
    ]


def test_the_shortest_goes_first_in_wspt_and_the_first_in_fcfs() -> None:
    rows = burst(3000, 2800, 400, 1500)  # one engine: the last three wait
    orders = {}
    for policy in ("wspt", "fcfs"):
        waits = run(rows, workers=1, queue_threshold=0.0, queue_policy=policy).queued_s
        assert waits[0] == 0 and len(set(waits[1:].tolist())) == 3
        orders[policy] = np.argsort(waits[1:]).tolist()
    assert orders == {"wspt": [1, 2, 0], "fcfs": [0, 1, 2]}


def test_after_an_overload_requests_pass_without_waiting() -> None:
    rows = burst(*[2000] * 30)
    rows += [TraceRequest(60_000.0 + 10_000 * i, 600, 2, (9000 + i, 9500 + i)) for i in range(3)]
    log = run(rows, queue_threshold=0.5, queue_limit=5)
    assert (log.status[:30] == REJECTED).sum() > 10
    assert (log.status[30:] == SERVED).all() and (log.queued_s[30:] == 0).all()


def test_busy_thresholds_turn_away_and_let_in_again() -> None:
    rows = burst(*[2000] * 10)
    rows.append(TraceRequest(60_000.0, 600, 2, (9000, 9001)))
    log = run(rows, active_prefill_tokens_threshold=3000)
    assert (log.status[:10] == REJECTED).sum() == 6
    assert log.status[10] == SERVED


def test_the_routers_settings_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text("[router]\nprefill_load_scale = 4\n[router.admission]\nqueue_threshold = 2\n")
    config = SimulationConfig(router_config=str(file)).router()
    assert (config.prefill_load_scale, config.admission.queue_threshold) == (4.0, 2.0)
    file.write_text("[router]\nprefil_load_scale = 4\n")
    with pytest.raises(ConfigError, match="prefil_load_scale"):
        SimulationConfig(router_config=str(file))
    with pytest.raises(ConfigError, match="cannot|No such file"):
        SimulationConfig(router_config=str(tmp_path / "none.toml"))
