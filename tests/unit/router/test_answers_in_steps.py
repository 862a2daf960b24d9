"""Answers about large fleets are made in steps, between which the event loop has turns."""

import asyncio
from collections.abc import Generator, Iterator
from typing import Any, cast

import msgspec
import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.router.admission import NO_OBJECTIVES
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.policy import CandidateTerms
from dynamo_router.router.proto import router_pb2 as pb
from dynamo_router.router.steps import STEP, by_steps, finish
from dynamo_router.server.dispatch import RequestReader
from dynamo_router.server.loop_share import answer_share, finish_in_turns, made_in_turns
from dynamo_router.server.services import RouterService

WORKERS = 6 * STEP
PROMPT = list(range(40))


@pytest.fixture
def router() -> Iterator[KvRouter]:
    with KvRouter(KvRouterConfig(block_size=4, seed=1), clock=ManualClock()) as router:
        for worker_id in range(WORKERS):
            router.add_worker(worker_id, total_kv_blocks=100)
        router.decide(list(range(40)), "r1", pinned_worker=7)
        yield router


def counted(steps: Generator[None, None, Any]) -> tuple[int, Any]:
    """How many steps, and the result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_an_explanation_takes_a_step_for_so_many_workers_and_is_the_same(router: KvRouter) -> None:
    steps, told = counted(router.explain_steps(router.prompt(PROMPT)))
    assert steps >= WORKERS // (2 * STEP) and len(told.candidates) == WORKERS
    assert told == router.explain(PROMPT)


def test_an_explanation_is_of_the_moment_it_was_asked_for(router: KvRouter) -> None:
    explained = router.explain(PROMPT)
    told = router.explain_steps(router.prompt(PROMPT))
    next(told)
    router.free("r1")
    router.decide(list(range(100, 140)), "r2", pinned_worker=9)
    router.remove_worker(WORKERS - 1)
    assert finish(told) == explained


async def test_the_loop_has_turns_meanwhile(router: KvRouter) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    share = answer_share()
    told = await finish_in_turns(router.explain_steps(router.prompt(PROMPT)), share)
    assert turns >= WORKERS // (2 * STEP)
    turns = 0
    rows = await made_in_turns(CandidateTerms.to_dict, told.candidates, share)
    assert turns >= WORKERS // STEP and told.to_dict(rows) == told.to_dict()
    turns = 0
    service = RouterService(router, RequestReader(4))
    listed = await service.ListWorkers(pb.ListWorkersRequest(), cast(Any, None))
    assert turns >= WORKERS // STEP and len(listed.workers) == WORKERS
    turns = 0
    explained = await service.Explain(
        pb.ExplainRequest(), router.prompt(PROMPT), NO_OBJECTIVES, None
    )
    assert turns >= WORKERS // STEP and len(explained.candidates) == WORKERS
    counting.cancel()


def test_chunks_are_the_items_in_order() -> None:
    assert list(by_steps(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(by_steps((), 2)) == []


async def test_no_part_of_an_explanation_is_written_at_once(
    router: KvRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    encode = msgspec.json.encode

    def noted(content: Any) -> bytes:
        written.append(len(encode(content)))
        return encode(content)

    monkeypatch.setattr(msgspec.json, "encode", noted)
    answer = await RouterService(router, RequestReader(4)).Explain(
        pb.ExplainRequest(), router.prompt(PROMPT), NO_OBJECTIVES, None
    )
    assert msgspec.json.decode(answer.json) == router.explain(PROMPT).to_dict()
    assert max(written) <= len(answer.json) / 4
    assert [row.worker.worker_id for row in answer.candidates] == list(range(WORKERS))
