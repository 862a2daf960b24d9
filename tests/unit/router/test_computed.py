"""A worker that has just computed a prompt, before its KV events say so."""

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router import KvRouter
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.placement import Computed, Placement

BLOCK, TOKENS = 16, range(64)
WORKERS = [WorkerWithDpRank(number, 0) for number in range(4)]


def router() -> KvRouter:
    made = KvRouter(KvRouterConfig(block_size=BLOCK, seed=1))
    for worker in WORKERS:
        made.registry.add(worker.worker_id)
    return made


def test_it_is_chosen_and_its_blocks_count_as_cached() -> None:
    routed = router()
    for at in range(8):
        computed = Computed(WORKERS[2], 4)
        placement = Placement(routed.prompt(TOKENS), f"r{at}", computed=computed)
        decision = routed.place(placement)
        assert decision.worker == WORKERS[2] and decision.overlap_blocks == 4
    assert routed.overlaps(TOKENS) == {}  # the index has it from events alone


def test_others_take_over_where_it_is_excluded_or_gone() -> None:
    routed = router()
    prompt = routed.prompt(TOKENS)
    computed = Computed(WORKERS[2], 4)
    away = routed.place(Placement(prompt, "a", computed=computed, excluded=frozenset({2})))
    assert away.worker != WORKERS[2] and away.overlap_blocks == 0
    routed.registry.remove(2)
    assert routed.place(Placement(prompt, "b", computed=computed)).worker != WORKERS[2]
    pinned = Placement(prompt, "c", computed=Computed(WORKERS[1], 4), pinned=WORKERS[3])
    assert routed.place(pinned).worker == WORKERS[3]
