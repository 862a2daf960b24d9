"""Published baselines: each formula on loads that can be worked out by hand."""

import random
from collections.abc import Mapping

import numpy as np
import pytest

from dynamo_router.bench.simulation import FleetSpec, SimulatedTrace, Simulation
from dynamo_router.bench.simulation.published import (
    PREBLE_ANSWER_TOKENS,
    PREBLE_PROMPT_TOKEN_S,
    PREBLE_STEP_S,
    PREBLE_TOKEN_S,
    PREBLE_WINDOW_S,
    EngineReport,
    LlmD,
    Preble,
)
from dynamo_router.bench.traces import TraceRequest
from dynamo_router.engines.mocker import EngineConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.policy import Candidates, LMetric, Policy
from dynamo_router.slots.table import SlotTable
from dynamo_router.workers.registry import WorkerEntry, WorkerRegistry


@pytest.fixture
def slots() -> SlotTable:
    """Three workers: 0 has two requests, one of 640 tokens to compute; 1 has one; 2 is idle."""
    table = SlotTable(64)
    for number in range(3):
        table.add_worker(number)
    table.add_request("a", 0, np.arange(10, dtype=np.uint64), isl=640, overlap_blocks=0, now=0.0)
    table.add_request(
        "b", 0, np.arange(10, 12, dtype=np.uint64), isl=128, overlap_blocks=0, now=0.0
    )
    table.add_request(
        "c", 1, np.arange(20, 22, dtype=np.uint64), isl=128, overlap_blocks=0, now=0.0
    )
    for done in ("b", "c"):
        table.mark_prefill_completed(done)
    return table


def asked(
    slots: SlotTable, overlaps: tuple[int, int, int], *, isl: int = 640, now: float = 0.0
) -> Candidates:
    return Candidates(
        slots,
        isl=isl,
        eligible=np.array([True, True, True]),
        overlaps=np.array(overlaps, np.uint32),
        sequence_hashes=np.arange(100, 100 + isl // 64, dtype=np.uint64),
        now=now,
    )


def choice(policy: Policy, candidates: Candidates) -> int:
    return policy.choose(candidates, random.Random(0))


def entries(blocks: int | None) -> list[WorkerEntry]:
    registry = WorkerRegistry()
    return [registry.add(number, total_kv_blocks=blocks) for number in range(3)]


def test_lmetric_multiplies_new_prefill_tokens_and_the_batch(slots: SlotTable) -> None:
    costs = LMetric().score(asked(slots, (9, 4, 0)))
    assert costs.tolist() == [(640 + 64) * 3, (640 - 256) * 2, 640]
    assert LMetric().score(asked(slots, (10, 10, 10)))[2] == 1, "the last token is computed"


def test_llm_d_adds_prefix_queue_and_memory(slots: SlotTable) -> None:
    policy = LlmD()
    for number, entry in enumerate(entries(100)):
        policy.on_worker(number, entry)
    costs = policy.score(asked(slots, (10, 5, 0)))
    assert costs.tolist() == pytest.approx(
        [-(3 * 1 + 0 + 2 * 0.88), -(3 * 0.5 + 2 * 0.5 + 2 * 0.98), -(0 + 2 + 2)]
    )
    for number, entry in enumerate(entries(None)):
        policy.on_worker(number, entry)
    assert policy.score(asked(slots, (0, 0, 0)))[0] == pytest.approx(0.0), "the fullest of all"


def test_llm_d_goes_by_what_engines_reported_last(slots: SlotTable) -> None:
    policy = LlmD()
    for number, entry in enumerate(entries(100)):
        policy.on_worker(number, entry)
    reports = {0: EngineReport(0, 10), 1: EngineReport(4, 50)}
    policy.on_reports(reports)
    costs = policy.score(asked(slots, (0, 0, 0)))
    assert costs.tolist() == pytest.approx([-(2 * 1 + 2 * 0.9), -(0 + 2 * 0.5), -(2 * 1 + 2 * 1.0)])
    policy.on_worker_gone(1)
    assert policy.score(asked(slots, (0, 0, 0)))[1] != costs[1]


def test_engines_report_every_fifty_milliseconds() -> None:
    told: list[tuple[float, Mapping[int, EngineReport]]] = []

    class Noting(LlmD):
        def on_reports(self, reports: Mapping[int, EngineReport]) -> None:
            told.append((simulation._clock.now(), reports))
            super().on_reports(reports)

    trace = SimulatedTrace(
        [TraceRequest(100 * n, 4000, 100, tuple(range(8 * n, 8 * n + 8))) for n in range(20)],
        block_size=64,
        trace_block_size=512,
    )
    engine = EngineConfig(block_size=64, num_gpu_blocks=400)
    config = KvRouterConfig(block_size=64)
    simulation = Simulation(
        trace,
        FleetSpec(workers=2, engine=engine),
        lambda clock: KvRouter(config, clock=clock, seed=1, strategy=Noting()),
    )
    simulation.run()
    times = [time for time, _ in told]
    gaps = np.diff(times)
    assert times[-1] > 2.0 and gaps.min() > 0.05 - 1e-9
    assert np.median(gaps) < 0.08  # and the step that is under way, at most
    assert all(set(reports) == {0, 1} for _, reports in told)
    assert any(report.waiting for _, reports in told for report in reports.values())
    assert max(report.used_blocks for _, reports in told for report in reports.values()) > 200


def computing(tokens: float) -> float:
    return PREBLE_STEP_S + PREBLE_PROMPT_TOKEN_S * tokens


DECODING = PREBLE_ANSWER_TOKENS * PREBLE_TOKEN_S


def test_preble_follows_a_long_prefix_and_else_the_least_load(slots: SlotTable) -> None:
    policy = Preble()
    asked_of_all = asked(slots, (6, 6, 0))
    policy.on_booked("x", 1, asked_of_all)  # 256 tokens, and an answer
    assert choice(policy, asked_of_all) == 0, "of those with the longest prefix the less loaded"
    short = policy.score(asked(slots, (0, 4, 0)))
    busy = computing(256) + DECODING
    assert short.tolist() == pytest.approx([computing(640), busy + computing(384), computing(640)])
    policy.on_end("x", 1.0, None)
    assert policy.load_s(1) == pytest.approx(computing(256)), "decoding ends with the request"
    later = policy.score(asked(slots, (0, 4, 0), now=PREBLE_WINDOW_S + 0.5))
    assert later[1] == pytest.approx(computing(384)), "what is older than the window is forgotten"


def test_preble_charges_a_usual_answer_when_a_request_is_sent(slots: SlotTable) -> None:
    policy = Preble()
    for turn in range(300):  # answers of 100 tokens, 20 ms each
        policy.on_booked("x", 0, asked(slots, (0, 0, 0), now=float(turn)))
        policy.on_first_token("x", turn + 0.1)
        policy.on_end("x", turn + 0.1 + 99 * 0.02, 100)
    policy.score(asked(slots, (0, 0, 0), now=1e4))  # past the window
    for number in (0, 1):
        policy.on_booked(str(number), number, asked(slots, (0, 0, 0), now=1e4))
    assert policy.load_s(0) == pytest.approx(computing(640) + 100 * 0.02)
    assert policy.load_s(1) == pytest.approx(computing(640) + 100 * PREBLE_TOKEN_S)
    assert not policy.load_s(2)


def test_preble_leaves_a_long_prefix_where_the_load_is_too_uneven(slots: SlotTable) -> None:
    policy = Preble()
    for name in range(20):
        policy.on_booked(str(name), 1, asked(slots, (0, 0, 0)))
    assert choice(policy, asked(slots, (0, 9, 0))) != 1
    policy.on_worker_gone(1)
    assert choice(policy, asked(slots, (0, 9, 0))) == 1
    policy.on_end("3", 1.0, 50)  # went with its worker: nothing to count
    assert policy.score(asked(slots, (0, 0, 0), now=1.0)).tolist() == [computing(640)] * 3
