"""Streams that lose their worker in mid-stream, over real gRPC: they go on at another one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
import structlog
from grpc import aio
from support.fake_engine import FakeEngine, chunk, complete, prompt
from support.polling import until
from support.rig import Rig, first

from dynamo_router.base.clock import SystemClock
from dynamo_router.server.dispatch import AccessLog
from dynamo_router.server.dispatch.observers import NoObserver
from dynamo_router.server.migration import RefusedMove
from dynamo_router.server.request_limits import RequestLimits
from dynamo_router.workers.trtllm_proto import pb

Code = grpc.StatusCode
Fault = Callable[[FakeEngine, Any], Any]
LENGTH = 8


async def dies(engine: FakeEngine, context: Any) -> None:
    """Its process is gone; nobody else waits for what runs there."""
    asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(engine.stop()))
    await asyncio.Event().wait()


def says(code: grpc.StatusCode) -> Fault:
    async def abort(engine: FakeEngine, context: Any) -> None:
        await context.abort(code, "no more")

    return abort


async def waits(engine: FakeEngine, context: Any) -> None:
    await asyncio.Event().wait()


def speaker(fault: Fault | None = None, after: int = 3, reason: str = "length") -> FakeEngine:
    """An engine whose tokens are the positions they have; `fault` comes after so many of them."""

    async def script(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        begin = len(request.tokenized.input_token_ids)
        said = range(begin, begin + request.max_tokens)
        for number, token in enumerate(said):
            if fault is not None and number == after:
                await fault(engine, context)
            yield chunk(request, token)
        last = complete(request, *said)
        last.complete.finish_reason = reason
        yield last

    return FakeEngine(script)


def asked(**more: Any) -> Any:
    request = prompt("r1", 4, **more)
    request.max_tokens = LENGTH
    return request


def migrating(*engines: FakeEngine, limit: int = 3, **more: Any) -> Rig:
    return Rig(*engines, limits=RequestLimits(migration_limit=limit, **more))


def check_whole(answers: list[Any], length: int = LENGTH) -> None:
    """As one engine would have said it."""
    *chunks, last = answers
    tokens = [token for each in chunks for token in each.chunk.token_ids]
    assert tokens == list(range(4, 4 + length))
    assert list(last.complete.output_token_ids) == tokens
    assert last.complete.completion_tokens == length
    assert last.complete.prompt_tokens == 4
    assert {each.request_id for each in answers} == {"r1"}


@pytest.mark.parametrize(
    "fault", [dies, says(Code.UNAVAILABLE), says(Code.INTERNAL), says(Code.RESOURCE_EXHAUSTED)]
)
async def test_a_stream_goes_on_where_it_was(fault: Fault) -> None:
    async with migrating(speaker(fault), speaker()) as rig:
        check_whole(await rig.answers(asked()))
        await rig.settled()
        (moved,) = rig.dispatcher.migrations.moved.values()
        assert moved == 1 and not rig.dispatcher.migrations.refused
        second = rig.engines[1].requests[0]
        assert list(second.tokenized.input_token_ids) == [1, 2, 3, 4, 4, 5, 6]
        assert second.max_tokens == LENGTH - 3


async def test_a_worker_that_falls_silent_is_left() -> None:
    rig = migrating(speaker(waits), speaker())
    rig.limits = replace(rig.limits, silence_s=0.2)
    async with rig:
        check_whole(await rig.answers(asked()))
        await until(lambda: rig.engines[0].cancelled == ["r1"])


async def test_it_may_move_several_times_and_no_more_often_than_the_limit() -> None:
    engines = [speaker(dies, 2) for _ in range(3)]
    async with migrating(*engines, speaker(), limit=3) as rig:
        check_whole(await rig.answers(asked()))
        assert rig.dispatcher.migrations.moved.total() == 3
    engines = [speaker(dies, 2) for _ in range(3)]
    async with migrating(*engines, speaker(), limit=2) as rig:
        code, details = await rig.refusal(asked())
        assert code is Code.UNAVAILABLE and "in mid-stream" in details
        assert rig.dispatcher.migrations.refused == {RefusedMove.LIMIT: 1}
        await rig.settled()


async def test_without_a_limit_a_stream_ends_with_its_worker() -> None:
    async with migrating(speaker(dies), speaker(), limit=0) as rig:
        code, _ = await rig.refusal(asked())
        assert code is Code.UNAVAILABLE and not rig.engines[1].requests


async def test_an_engine_that_shuts_down_ends_nothing() -> None:
    ending = speaker(reason="cancelled")
    async with migrating(ending, speaker()) as rig:
        request = asked()
        request.max_tokens = 3
        check_whole(await rig.answers(request), 3)
        # All was said but the last word: nobody else needs to be asked.
        assert not rig.engines[1].requests
        await rig.settled()
        assert rig.dispatcher.budget.granted == 0


async def test_what_needs_nobody_else_needs_no_budget_and_has_a_verdict() -> None:
    """All was said but the last word, while the retry budget is used up."""
    undecided: list[int] = []
    limits = {"retry_budget": 0.0, "retry_budget_least": 0}
    async with migrating(speaker(reason="cancelled"), speaker(), **limits) as rig:
        rig.monitor.reports.undecided = undecided.append  # type: ignore[method-assign]
        request = asked()
        request.max_tokens = 3
        check_whole(await rig.answers(request), 3)
        assert undecided == [rig.worker_id(rig.engines[0])]
        assert rig.dispatcher.budget.retrying == 0


@pytest.mark.parametrize(
    ("fault", "request_", "reason"),
    [
        (says(Code.INVALID_ARGUMENT), asked(), RefusedMove.FAILURE),
        (dies, asked(stop=["x"]), RefusedMove.REQUEST),
        (dies, asked(output_config=pb.OutputConfig(prompt_logprobs=1)), RefusedMove.REQUEST),
    ],
)
async def test_what_does_not_move(fault: Fault, request_: Any, reason: RefusedMove) -> None:
    async with migrating(speaker(fault), speaker()) as rig:
        await rig.refusal(request_)
        assert rig.dispatcher.migrations.refused == {reason: 1}
        assert not rig.engines[1].requests
        await rig.settled()


@pytest.mark.parametrize("reason", ["timeout", ""])
async def test_an_answer_that_has_its_last_word_does_not_go_on(reason: str) -> None:
    """Its client would get a second one."""

    async def script(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        yield chunk(request, 4)
        last = complete(request, 4)
        last.complete.finish_reason = reason
        yield last
        await context.abort(Code.UNAVAILABLE, "no more")

    async with migrating(FakeEngine(script), speaker()) as rig:
        code, _ = await rig.refusal(asked())
        assert code is Code.UNAVAILABLE and not rig.engines[1].requests
        assert rig.dispatcher.migrations.refused == {RefusedMove.FAILURE: 1}
        await rig.settled()


async def test_a_request_that_named_its_worker_stays_there() -> None:
    async with migrating(speaker(dies), speaker()) as rig:
        worker = ("x-dynamo-worker-instance-id", str(rig.worker_id(rig.engines[0])))
        code, _ = await rig.refusal(asked(), metadata=(worker,))
        assert code is Code.UNAVAILABLE and not rig.dispatcher.migrations.refused


async def test_nobody_else_is_there() -> None:
    async with migrating(speaker(dies)) as rig:
        code, details = await rig.refusal(asked())
        assert code is Code.UNAVAILABLE and "after 3 messages" in details
        assert rig.dispatcher.migrations.refused == {RefusedMove.NO_WORKER: 1}
        await rig.settled()


async def test_the_next_worker_may_be_gone_as_well() -> None:
    second = speaker()

    async def both_die(engine: FakeEngine, context: Any) -> None:
        await second.stop()
        await dies(engine, context)

    async with migrating(speaker(both_die), second, speaker(), limit=1) as rig:
        check_whole(await rig.answers(asked()))
        assert rig.dispatcher.migrations.moved.total() == 1
        await rig.settled()


@pytest.mark.parametrize(
    ("code", "least", "tried", "reason"),
    [
        (Code.INVALID_ARGUMENT, 8, 2, RefusedMove.FAILURE),  # two of one opinion
        (Code.UNAVAILABLE, 0, 1, RefusedMove.BUDGET),
    ],
)
async def test_a_next_worker_that_fails_for_good_counts(
    code: grpc.StatusCode, least: int, tried: int, reason: RefusedMove
) -> None:
    """It has moved, and ends all the same, before its next worker has said anything of it."""
    others = speaker(says(code), 0), speaker(says(code), 0)
    budget = {"retry_budget": 0.0, "retry_budget_least": least}
    async with migrating(speaker(dies), *others, limit=1, **budget) as rig:
        said, _ = await rig.refusal(asked())
        assert said is code and sum(len(other.requests) for other in others) == tried
        assert rig.dispatcher.migrations.moved.total() == 1
        assert rig.dispatcher.migrations.refused == {reason: 1}
        await rig.settled()


async def test_an_abort_reaches_the_worker_that_it_went_on_at() -> None:
    second = speaker(waits, 2)
    async with migrating(speaker(dies), second) as rig:
        call = rig.call(asked())
        for _ in range(5):
            await first(call)
        answer = await rig.unary("Abort", pb.AbortRequest(request_id="r1"), pb.AbortResponse)
        assert answer.success and second.aborted == ["r1"]
        call.cancel()
        await rig.settled()


async def test_a_client_that_leaves_after_a_move_frees_everything() -> None:
    second = speaker(waits, 2)
    async with migrating(speaker(dies), second) as rig:
        call = rig.call(asked())
        for _ in range(5):
            await first(call)
        call.cancel()
        with pytest.raises((asyncio.CancelledError, aio.AioRpcError)):
            await call.read()
        await until(lambda: second.cancelled == ["r1"])
        await rig.settled()


async def test_the_access_log_tells_of_one_request() -> None:
    rig = migrating(speaker(dies), speaker())
    rig._observer = AccessLog(SystemClock(), NoObserver())
    with structlog.testing.capture_logs() as logs:
        async with rig:
            await rig.answers(asked())
            await rig.settled()
    (line,) = [each for each in logs if each["event"] == "request ended"]
    assert (line["status"], line["migrations"], line["prompt_tokens"]) == ("OK", 1, 4)
    assert line["messages"] == LENGTH + 1 and len(line["attempts"]) == 1
