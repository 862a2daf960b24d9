"""Several routers in virtual time: as good as one while they hear each other, and nothing left."""

import numpy as np
import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.simulation.config import SimulationConfig
from dynamo_router.bench.simulation.policies import parse_policies
from dynamo_router.bench.simulation.prepared_trace import SimulatedTrace
from dynamo_router.bench.simulation.replicas import ReplicaConfig
from dynamo_router.bench.simulation.request_log import SERVED
from dynamo_router.bench.simulation.simulation import FleetSpec, Simulation
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.traces.trace import read_trace
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.router.config import KvRouterConfig

ENGINE = EngineConfig(num_gpu_blocks=400, max_num_seqs=16, max_num_batched_tokens=2048)


def run_of(policy: str, replicas: ReplicaConfig, apart_s: float = 0.13) -> Simulation:
    """Requests apart from each other: of those that come at one moment nobody can hear in time."""
    trace = SimulatedTrace(list(read_trace(SAMPLE_TRACE, limit=300)), block_size=64)
    trace = trace.evenly_apart(apart_s)
    shares = replicas.routers > 1 and replicas.replica_sync
    base = KvRouterConfig(router_replica_sync=shares)
    variant = parse_policies(policy, block_size=64, trace_block_size=512, base=base)[0]
    fleet = FleetSpec(workers=4, engine=ENGINE)
    made = Simulation(
        trace, fleet, lambda clock: variant.new_router(clock, 0), seed=1, replicas=replicas
    )
    made.log = made.run()  # type: ignore[attr-defined]
    assert (made.log.status == SERVED).all()  # type: ignore[attr-defined]
    return made


def imbalance(run: Simulation) -> float:
    """Of requests in flight, the worker that has most against the mean; mean over time."""
    log = run.log  # type: ignore[attr-defined]
    sent = log.arrival_s + log.queued_s
    times = np.linspace(sent.min(), np.percentile(sent, 95), 500)
    loads = np.array(
        [
            np.searchsorted(np.sort(sent[log.worker == worker]), times, "right")
            - np.searchsorted(np.sort(log.last_s[log.worker == worker]), times, "right")
            for worker in range(4)
        ]
    )
    busy = loads.sum(0) >= 4
    return float((loads.max(0)[busy] / loads.mean(0)[busy]).mean())


@pytest.mark.parametrize("policy", ["forecast", "dynamo:1", "least-loaded"])
@pytest.mark.parametrize("routers", [2, 4])
def test_routers_that_hear_each_other_balance_like_one(policy: str, routers: int) -> None:
    alone = run_of(policy, ReplicaConfig())
    synced = run_of(policy, ReplicaConfig(routers=routers))
    assert imbalance(synced) <= 1.15 * imbalance(alone)
    for router in synced.routers:
        assert {view.own_requests for view in router.workers()} == {0}


def test_without_sync_each_knows_its_own_requests_only() -> None:
    apart = run_of("least-loaded", ReplicaConfig(routers=4, replica_sync=False))
    synced = run_of("least-loaded", ReplicaConfig(routers=4))
    assert imbalance(apart) - 1 > 1.2 * (imbalance(synced) - 1)
    assert apart._network is None


def test_what_is_lost_heals_and_the_same_seed_gives_the_same_run() -> None:
    rough = ReplicaConfig(routers=3, replica_loss=0.2, replica_delay_ms=5, replica_cut_s="5-9")
    runs = [run_of("forecast", rough) for _ in range(2)]
    assert np.array_equal(runs[0].log.worker, runs[1].log.worker)  # type: ignore[attr-defined]
    assert runs[0]._network is not None
    counts = runs[0]._network._replicas[0].peers.counts
    assert counts.pictures > 2 and counts.gaps > 2 and counts.gone >= 2


@pytest.mark.parametrize(
    "bad",
    [
        {"routers": 0},
        {"replica_delay_ms": -1},
        {"replica_loss": 1.5},
        {"replica_cut_s": "5"},
        {"replica_cut_s": "a-b"},
    ],
)
def test_settings_are_checked(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ReplicaConfig(**bad)  # type: ignore[arg-type]


def test_the_router_under_test_shares_where_there_are_several() -> None:
    assert SimulationConfig(replicas=ReplicaConfig(routers=2)).router().router_replica_sync
    assert not SimulationConfig().router().router_replica_sync
