"""Engines that fail, each in its way, while others are well: whose fault it is, and who pays."""

import asyncio
import itertools
from collections import Counter
from typing import Any

import grpc
import pytest
from grpc import aio
from structlog.testing import capture_logs
from support.fake_engine import (
    FakeEngine,
    Script,
    answer,
    chunk,
    complete,
    fail,
    hang,
    prompt,
    stall,
)
from support.polling import until
from support.rig import Rig, first

from dynamo_router.base.errors import StatusCode
from dynamo_router.server.request_limits import RequestLimits
from dynamo_router.transport.http2 import _client_call
from dynamo_router.workers.channels import MAX_MESSAGE_BYTES
from dynamo_router.workers.failures import EngineCallError, Origin
from dynamo_router.workers.health_tracker import HealthPolicy
from dynamo_router.workers.outliers import OutlierPolicy
from dynamo_router.workers.registry import WorkerState
from dynamo_router.workers.trtllm_proto import pb

Code = grpc.StatusCode


async def empty(engine: FakeEngine, request: Any, context: Any) -> Any:
    """End with OK and say nothing."""
    return
    yield


async def large(engine: FakeEngine, request: Any, context: Any) -> Any:
    """Say more than is read."""
    yield pb.GenerateResponse(request_id="x" * (MAX_MESSAGE_BYTES + 1))


FAILING = [
    empty,
    large,
    *(
        fail(code, "no")
        for code in (
            Code.FAILED_PRECONDITION,
            Code.UNIMPLEMENTED,
            Code.PERMISSION_DENIED,
            Code.RESOURCE_EXHAUSTED,
            Code.INTERNAL,
            Code.UNAVAILABLE,
            Code.CANCELLED,
            Code.INVALID_ARGUMENT,
            Code.OUT_OF_RANGE,
        )
    ),
    fail(Code.INTERNAL, "a traceback " * 2000),
]


def state(rig: Rig, engine: FakeEngine) -> WorkerState:
    entry = rig.registry.entry(rig.worker_id(engine))
    assert entry is not None
    return entry.state


@pytest.mark.parametrize("script", FAILING)
async def test_a_worker_that_fails_at_once_attracts_nothing_and_no_client_notices(
    script: Script,
) -> None:
    async with Rig(FakeEngine(script), *(FakeEngine() for _ in range(3))) as rig:
        bad = rig.engines[0]
        for number in range(60):
            assert len(await rig.answers(prompt(f"r{number}"))) == 3
        assert 1 <= len(bad.requests) <= 5
        errors = rig.monitor.reports.errors
        assert {worker for worker, _ in errors} == {rig.worker_id(bad)}
        assert errors.total() == len(bad.requests)


async def test_a_fault_of_ours_is_held_against_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is tried elsewhere once, and fails by a status of ours if that is no use."""

    def flawed(*_: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    async with Rig(FakeEngine(empty), FakeEngine(empty)) as rig:
        for engine in rig.engines:
            engine.script = fail(Code.UNAVAILABLE, "full")
        monkeypatch.setattr(_client_call, "outcome_of", flawed)
        with capture_logs() as logs:
            for number in range(30):
                code, text = await rig.refusal(prompt(f"r{number}"))
                assert (code, text) == (Code.INTERNAL, "ZeroDivisionError in the router")
        assert not rig.monitor.reports.errors
        assert {state(rig, engine) for engine in rig.engines} == {WorkerState.READY}
        assert sum(len(engine.requests) for engine in rig.engines) == 60
    assert any(line["event"] == "a call failed here" for line in logs)


async def test_a_probe_that_fails_by_a_fault_of_ours_takes_no_worker_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = HealthPolicy(probe_interval_s=0.02, retry_first_s=0.02, retry_most_s=0.1)
    async with Rig(FakeEngine(), policy=policy) as rig:
        (engine,) = rig.engines
        seen, failed = list[WorkerState](), list[str]()
        rig.monitor.listeners.append(lambda: seen.append(state(rig, engine)))
        watched = rig.monitor.find(engine.address)
        assert watched is not None
        check_health = watched.client.check_health

        async def flawed(**words: float) -> Any:
            if not failed:
                failed.append("a mistake of ours")
                raise EngineCallError(Origin.ROUTER, StatusCode.INTERNAL, *failed)
            return await check_health(**words)

        monkeypatch.setattr(watched.client, "check_health", flawed)
        await until(lambda: failed)
        probes = watched.probes
        await until(lambda: watched.probes >= probes + 2)
        assert set(seen) <= {WorkerState.READY} and state(rig, engine) is WorkerState.READY


async def blank(engine: FakeEngine, request: Any, context: Any) -> Any:
    """Say at once that there is nothing to say."""
    yield complete(request)


async def test_a_worker_whose_answers_are_blank_attracts_nothing() -> None:
    async with Rig(FakeEngine(blank), *(FakeEngine() for _ in range(3))) as rig:
        bad = rig.engines[0]
        for number in range(60):
            assert len(await rig.answers(prompt(f"r{number}"))) in (1, 3)
        assert 1 <= len(bad.requests) <= 8
        assert rig.monitor.reports.errors == {(rig.worker_id(bad), "blank"): len(bad.requests)}


async def test_blank_answers_of_all_workers_are_what_was_asked_for() -> None:
    async with Rig(*(FakeEngine(blank) for _ in range(3))) as rig:
        for number in range(60):
            assert len(await rig.answers(prompt(f"r{number}"))) == 1
        assert all(entry.state is WorkerState.READY for entry in rig.entries)
        assert not rig.monitor.reports.outliers.ejections


async def test_an_answer_without_a_message_is_no_answer() -> None:
    async with Rig(FakeEngine(empty)) as rig:
        code, details = await rig.refusal(prompt())
        assert code is Code.UNAVAILABLE and "ended without an answer" in details
        await rig.settled()


async def test_a_request_that_fails_everywhere_takes_nobody_away() -> None:
    async def script(engine: FakeEngine, request: Any, context: Any) -> Any:
        if request.request_id.startswith("poison"):
            await context.abort(Code.UNAVAILABLE, "not this one")
        async for message in answer(engine, request, context):
            yield message

    async with Rig(*(FakeEngine(script) for _ in range(3))) as rig:
        for number in range(10):
            code, _ = await rig.refusal(prompt(f"poison{number}"))
            assert code is Code.UNAVAILABLE
            for other in range(4):
                assert len(await rig.answers(prompt(f"r{number}-{other}"))) == 3
        assert all(entry.state is WorkerState.READY for entry in rig.entries)
        assert not rig.monitor.reports.outliers.ejections


async def test_two_opinions_are_enough_where_an_engine_says_it_cannot() -> None:
    async with Rig(*(FakeEngine(fail(Code.INTERNAL, "broken")) for _ in range(4))) as rig:
        assert await rig.refusal(prompt()) == (Code.INTERNAL, "broken")
        assert sum(len(engine.requests) for engine in rig.engines) == 2


async def test_a_request_under_which_connections_break_is_tried_twice_and_named() -> None:
    async def die(engine: FakeEngine, request: Any, context: Any) -> Any:
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(engine.stop()))
        await asyncio.Event().wait()
        yield

    async with Rig(*(FakeEngine(die) for _ in range(4)), max_attempts=4) as rig:
        with capture_logs() as logs:
            code, _ = await rig.refusal(prompt("deadly"))
            await rig.settled()
        assert code is Code.UNAVAILABLE
        (line,) = [entry for entry in logs if entry["event"] == "request failed"]
        assert (line["request_id"], line["breaks_workers"]) == ("deadly", True)
        # A server that stops sometimes gets to say so: no connection was lost then.
        causes = dict(attempt.split(":") for attempt in line["attempts"])
        assert {int(worker_id) for worker_id in causes} == {
            rig.worker_id(engine) for engine in rig.engines if engine.requests
        }
        assert Counter(causes.values())["connection_lost"] == 2
        assert set(causes.values()) <= {"connection_lost", "unavailable"}


async def test_deadlines_without_a_token_speak_against_a_worker_that_answers_nobody() -> None:
    quick = OutlierPolicy(failures_in_a_row=2)
    async with Rig(FakeEngine(hang), FakeEngine(), outliers=quick) as rig:
        bad, _ = rig.engines

        async def ask(number: int) -> None:
            try:
                await rig.answers(prompt(f"r{number}"), timeout=4.0)
            except aio.AioRpcError as error:
                assert error.code() is Code.DEADLINE_EXCEEDED

        for number in itertools.count():
            await asyncio.gather(*(ask(10 * number + n) for n in range(4)))
            if state(rig, bad) is WorkerState.UNHEALTHY:
                break
            assert number < 6
        errors = rig.monitor.reports.errors
        assert errors == {(rig.worker_id(bad), "deadline"): len(bad.requests)}


async def test_a_stuck_worker_is_ejected_and_what_waits_there_moves() -> None:
    async with Rig(
        FakeEngine(hang), FakeEngine(), limits=RequestLimits(stuck_timeout_s=1.5)
    ) as rig:
        bad, _ = rig.engines
        waiting = [asyncio.create_task(rig.answers(prompt(f"w{n}"))) for n in range(4)]
        await rig.running(bad)
        moved = await asyncio.wait_for(asyncio.gather(*waiting, _keep_asking(rig, waiting)), 60)
        assert [len(answers) for answers in moved[:4]] == [3] * 4
        assert state(rig, bad) is WorkerState.UNHEALTHY
        await until(lambda: len(bad.cancelled) == len(bad.requests))
        await rig.settled()


async def _keep_asking(rig: Rig, waiting: list[Any]) -> list[Any]:
    """Others are answered meanwhile."""
    for number in itertools.count():
        if all(task.done() for task in waiting):
            return []
        good = (("x-dynamo-worker-instance-id", str(rig.worker_id(rig.engines[1]))),)
        await rig.answers(prompt(f"k{number}"), metadata=good)
        await asyncio.sleep(0.05)
    return []


async def test_requests_without_a_token_leave_a_worker_whose_probes_fail() -> None:
    async with Rig(FakeEngine(hang), FakeEngine(stall)) as rig:
        bad, good = rig.engines
        call = rig.call(prompt("r1"), metadata=())
        await until(lambda: bad.requests or good.requests)
        if good.requests:  # the first in turn was the good one
            await first(call)
            good.go.set()
            call = rig.call(prompt("r2"))
            await rig.running(bad)
        good.script = answer
        bad.status = "broken"
        rig.monitor.suspect(rig.worker_id(bad), 100.0)
        assert (await first(call)).request_id in ("r1", "r2")
        await until(lambda: bool(bad.cancelled))
        assert len(bad.requests) == 1
        await rig.settled()


async def test_an_abort_between_two_attempts_ends_it_as_aborted() -> None:
    async def late(engine: FakeEngine, request: Any, context: Any) -> Any:
        await engine.go.wait()
        await context.abort(Code.UNAVAILABLE, "going down")
        yield

    async with Rig(FakeEngine(late), FakeEngine(late)) as rig:
        call = rig.call(prompt("r1"))
        await until(lambda: any(engine.requests for engine in rig.engines))
        await rig.unary("Abort", pb.AbortRequest(request_id="r1"), pb.AbortResponse)
        for engine in rig.engines:
            engine.go.set()
        assert await call.code() is Code.CANCELLED
        assert sum(len(engine.requests) for engine in rig.engines) == 1
        await rig.settled()


async def test_retries_that_double_work_have_a_budget() -> None:
    full = fail(Code.RESOURCE_EXHAUSTED, "full")
    limits = RequestLimits(retry_budget=0, retry_budget_least=0)
    async with Rig(FakeEngine(full), FakeEngine(full), limits=limits) as rig:
        assert await rig.refusal(prompt()) == (Code.RESOURCE_EXHAUSTED, "full")
        assert rig.dispatcher.hits.counts() == {"retry_budget": 1}
        assert sum(len(engine.requests) for engine in rig.engines) == 1


async def test_a_prompt_goes_to_those_that_can_take_it() -> None:
    small, large, tiny = FakeEngine(), FakeEngine(), FakeEngine()
    small.model.max_input_len, tiny.model.vocab_size = 16, 10
    async with Rig(small, large, tiny) as rig:
        for number in range(6):
            assert len(await rig.answers(prompt(f"r{number}", tokens=64))) == 3
        assert (len(small.requests), len(large.requests), len(tiny.requests)) == (0, 6, 0)
        code, details = await rig.refusal(prompt(tokens=101))
        assert code is Code.INVALID_ARGUMENT and "the model's limit of 100" in details
        for number in range(6):
            await rig.answers(prompt(f"s{number}", tokens=8))
        assert min(len(engine.requests) for engine in rig.engines) > 0


async def test_a_long_answer_is_the_requests_doing_if_two_engines_give_it() -> None:
    async with Rig(*(FakeEngine(large) for _ in range(3))) as rig:
        code, details = await rig.refusal(prompt())
        assert code is Code.RESOURCE_EXHAUSTED and "larger than max" in details
        assert sum(len(engine.requests) for engine in rig.engines) == 2
        assert not rig.monitor.reports.errors


async def test_an_engines_long_words_are_cut() -> None:
    async with Rig(FakeEngine(fail(Code.INTERNAL, "word " * 1000))) as rig:
        code, details = await rig.refusal(prompt())
        assert code is Code.INTERNAL and len(details) <= 1024 and details.endswith(" ...")


async def test_an_answer_that_comes_whole_counts_as_prefill_for_its_prefill_only() -> None:
    async with Rig(FakeEngine(hang)) as rig:
        request = prompt("whole")
        request.streaming = False
        call = rig.call(request)
        await until(lambda: rig.router.released == ["whole"])
        call.cancel()
        await rig.settled()


async def test_embed_is_tried_elsewhere_and_counted() -> None:
    async def embed(request: bytes, context: Any) -> bytes:
        return b"vector"

    good, gone = FakeEngine(), FakeEngine()
    good.embed = embed
    async with Rig(good, gone) as rig:
        await gone.stop()
        for _ in range(4):
            call = rig.channel.unary_unary("/trtllm.TrtllmService/Embed", None, None)
            assert await call(b"") == b"vector"
        await until(lambda: rig.dispatcher.in_flight == 0)
        await until(lambda: state(rig, gone) is WorkerState.UNHEALTHY)


async def test_one_token_does_not_hide_a_worker_that_fails_after_it() -> None:
    async def breaks(engine: FakeEngine, request: Any, context: Any) -> Any:
        yield chunk(request, 1)
        await context.abort(Code.INTERNAL, "broken")

    policy = OutlierPolicy(least_requests=4)
    async with Rig(FakeEngine(breaks), FakeEngine(), FakeEngine(), outliers=policy) as rig:
        bad = rig.engines[0]
        for number in itertools.count():
            try:
                await rig.answers(prompt(f"r{number}"))
            except aio.AioRpcError as error:
                assert error.code() is Code.INTERNAL
            if state(rig, bad) is WorkerState.UNHEALTHY:
                break
            await asyncio.sleep(0.01)
            assert number < 1000
        assert len(bad.requests) == 4
