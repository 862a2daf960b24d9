"""Prefetcher: which engines are asked, and what becomes of their answers."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from support.kv_events.messages import prompt_message
from support.polling import until

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.errors import StatusCode
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.wire.events import StorageTier
from dynamo_router.router.placement import Placement
from dynamo_router.server.prefetch import Prefetcher
from dynamo_router.workers.failures import EngineCallError, Origin

BLOCK = 4
TOKENS = list(range(10, 51))
BODY = b"its GenerateRequest"
Answer = int | None | StatusCode


@dataclass
class Engines:
    """A monitor whose only engine answers `answer`."""

    answer: Answer = 10
    asked: list[tuple[bytes, Any]] = field(default_factory=list)

    def client(self, worker_id: int) -> "Engines":
        return self

    async def prefetch(self, request: bytes, *, timeout: float, metadata: Any) -> int | None:
        self.asked.append((request, metadata))
        if isinstance(self.answer, StatusCode):
            raise EngineCallError(Origin.ENGINE, self.answer, "no")
        return self.answer


def router_with(tier: StorageTier, **config: Any) -> KvRouter:
    """One worker, which has the whole prompt in a tier."""
    router = KvRouter(KvRouterConfig(block_size=BLOCK, **config), seed=1)
    router.add_worker(7)
    router.apply_event(prompt_message(WorkerWithDpRank(7), TOKENS, BLOCK, publisher=7, tier=tier))
    return router


async def test_a_request_that_waits_is_loaded_where_it_is_expected_and_waste_is_counted() -> None:
    with router_with("host_pinned") as router:
        engines = Engines()
        prefetcher = Prefetcher(router, cast(Any, engines))
        prefetcher.on_held(Placement(router.prompt(TOKENS), "a"), BODY)
        await until(lambda: prefetcher.plan.counts.blocks == 10)
        assert engines.asked == [(BODY, ())]
        prefetcher.on_held(Placement(router.prompt(TOKENS), "a"), BODY)
        prefetcher.on_over("a")
        counts = prefetcher.plan.counts
        assert (counts.asked, counts.blocks, counts.wasted) == (1, 10, 10)
        await prefetcher.close()


async def test_a_request_that_is_sent_to_a_busy_worker_is_loaded_there() -> None:
    with router_with("disk") as router:
        engines = Engines()
        prefetcher = Prefetcher(router, cast(Any, engines))
        first = router.decide(router.prompt(TOKENS), "first")
        prefetcher.on_sent("first", BODY, first)
        assert prefetcher.plan.counts.asked == 0, "it begins at once"
        second = router.decide(router.prompt(TOKENS), "second")
        prefetcher.on_sent("second", BODY, second)
        await until(lambda: prefetcher.plan.counts.blocks == 10)
        assert prefetcher.plan.counts.wasted == 0
        await prefetcher.close()


async def test_an_engine_that_does_not_know_the_call_is_asked_once() -> None:
    with router_with("host_pinned") as router:
        engines = Engines(None)
        prefetcher = Prefetcher(router, cast(Any, engines))
        for name in "abc":
            prefetcher.on_held(Placement(router.prompt(TOKENS), name), BODY)
            await asyncio.sleep(0)
        assert len(engines.asked) == 1
        router.remove_worker(7)
        await prefetcher.close()


async def test_a_call_that_fails_is_of_no_consequence() -> None:
    with router_with("host_pinned") as router:
        engines = Engines(StatusCode.UNAVAILABLE)
        prefetcher = Prefetcher(router, cast(Any, engines))
        for name in "ab":
            prefetcher.on_held(Placement(router.prompt(TOKENS), name), BODY)
        await until(lambda: len(engines.asked) == 2)
        await prefetcher.close()
        prefetcher.plan.check_integrity()
        assert prefetcher.plan.counts.blocks == 0


async def test_nothing_is_asked_without_lower_tiers_the_setting_or_a_choice() -> None:
    cases: list[tuple[StorageTier, bool, WorkerWithDpRank | None]] = [
        ("device", True, None),
        ("disk", False, None),
        ("disk", True, WorkerWithDpRank(7, 0)),
    ]
    for tier, setting, pinned in cases:
        with router_with(tier, router_prefetch=setting) as router:
            prefetcher = Prefetcher(router, cast(Any, Engines()))
            prefetcher.on_held(Placement(router.prompt(TOKENS), "a", pinned=pinned), BODY)
            assert prefetcher.plan.counts.asked == 0
            await prefetcher.close()
