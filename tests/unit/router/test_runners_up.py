"""Which workers a decision names beside the chosen one."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.placement import Placement

TOKENS = list(range(640))


@pytest.fixture
def router() -> Iterator[KvRouter]:
    with KvRouter(KvRouterConfig(block_size=64, use_kv_events=False, seed=1)) as router:
        yield router


def place(router: KvRouter, count: int, **more: object) -> tuple[int, ...]:
    """The chosen worker, then those that were named."""
    wanted = replace(Placement(router.prompt(TOKENS), runners_up=count), **more)
    decision = router.place(wanted)
    return (decision.worker.worker_id, *decision.runners_up)


@given(
    loads=st.lists(st.integers(1, 15), min_size=1, max_size=7, unique=True),
    count=st.integers(0, 8),
    excluded=st.sets(st.integers(0, 6)),
    allowed=st.sets(st.integers(0, 6)),
    dp_size=st.integers(1, 3),
)
def test_they_are_those_that_further_decisions_would_choose(
    loads: list[int], count: int, excluded: set[int], allowed: set[int], dp_size: int
) -> None:
    """One decision after the other, without those before."""
    with KvRouter(KvRouterConfig(block_size=64, use_kv_events=False, seed=1)) as router:
        for worker_id, load in enumerate(loads):
            router.registry.add(worker_id, dp_size=dp_size)
            for rank in range(dp_size):
                busy_with = range(1000 * (worker_id + 1), 1000 * (worker_id + 1) + 64 * load)
                router.decide(
                    list(busy_with),
                    f"{worker_id} {rank}",
                    pinned_worker=WorkerWithDpRank(worker_id, rank),
                )
        able = set(range(len(loads))) - excluded
        able = able & allowed if allowed else able
        if not able:
            return
        more = {"excluded": frozenset(excluded), "allowed": frozenset(allowed)}
        found = place(router, count, **more)
        assert set(found) <= able
        assert len(found) == 1 + min(count, len(able) - 1) == len(set(found))
        taken = frozenset(excluded)
        for worker_id in found:
            wanted = Placement(router.prompt(TOKENS), excluded=taken, allowed=frozenset(allowed))
            assert router.place(wanted).worker.worker_id == worker_id
            taken |= {worker_id}


def test_a_worker_that_is_to_have_little_is_named_too(router: KvRouter) -> None:
    for worker_id in (1, 2, 3):
        router.registry.add(worker_id)
    router.registry.set_weight(3, 0.01)
    first, *others = place(router, 2)
    assert sorted([first, *others]) == [1, 2, 3], "one that is avoided is better than none"
    assert "runners_up" not in router.place(Placement(router.prompt(TOKENS))).to_dict()
