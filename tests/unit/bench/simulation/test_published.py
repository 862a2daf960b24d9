"""Published baselines: each formula on loads that can be worked out by hand."""

import random

import numpy as np
import pytest

from dynamo_router.bench.simulation.published import PREBLE_WINDOW_S, LlmD, Preble
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


def test_preble_follows_a_long_prefix_and_else_the_least_load(slots: SlotTable) -> None:
    policy = Preble()
    asked_of_all = asked(slots, (6, 6, 0))
    policy.on_booked("x", 1, asked_of_all)  # 256 tokens
    assert choice(policy, asked_of_all) == 0, "of those with the longest prefix the less loaded"
    short = policy.score(asked(slots, (0, 4, 0)))
    assert short.tolist() == [640, 256 + 384, 640], "less than half is cached: it explores"
    policy.on_end("x", 1.0, 100)
    assert policy.score(asked(slots, (0, 4, 0), now=1.0))[1] == 256 + 100 + 384
    later = asked(slots, (0, 4, 0), now=PREBLE_WINDOW_S + 0.5)
    assert policy.score(later)[1] == 100 + 384, "what is older than the window is forgotten"


def test_preble_leaves_a_long_prefix_where_the_load_is_too_uneven(slots: SlotTable) -> None:
    policy = Preble()
    for name in range(20):
        policy.on_booked(str(name), 1, asked(slots, (0, 0, 0)))
    assert choice(policy, asked(slots, (0, 9, 0))) != 1
    policy.on_worker_gone(1)
    assert choice(policy, asked(slots, (0, 9, 0))) == 1
    policy.on_end("3", 1.0, 50)  # went with its worker: nothing to count
    assert policy.score(asked(slots, (0, 0, 0), now=1.0)).tolist() == [640, 640, 640]
