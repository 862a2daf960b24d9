"""Requests through the router over real gRPC: answers, refusals, faults, cancellations."""

import asyncio
import gc
import itertools

import grpc
import pytest
from grpc import aio
from msgspec.structs import replace
from support.calls import too_late
from support.fake_engine import FakeEngine, answer, chunk, complete, fail, hang, prompt, stall
from support.polling import until
from support.rig import Rig, first

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.indexer import block_hashes
from dynamo_router.server.dispatch import ReadRequest, watch
from dynamo_router.server.dispatch.generate_request import read_generate
from dynamo_router.server.dispatch.request import Attempt, Request
from dynamo_router.workers import outliers
from dynamo_router.workers.registry import WorkerState
from dynamo_router.workers.trtllm_proto import pb

Code = grpc.StatusCode


async def test_bytes_pass_unchanged_both_ways() -> None:
    async with Rig(FakeEngine()) as rig:
        (engine,) = rig.engines
        # A field that this build does not know must survive: number 999, a varint.
        body = prompt("r1").SerializeToString() + b"\xb8\x3e\x2a"
        call = rig.call(body)
        answers = [message async for message in call]
        request = prompt("r1")
        assert answers == [
            chunk(request, 11).SerializeToString(),
            chunk(request, 12).SerializeToString(),
            complete(request, 11, 12).SerializeToString(),
        ]
        assert engine.requests[0].SerializeToString() == body
        trailing = dict(await call.trailing_metadata())
        assert trailing["x-dynamo-worker-id"] == str(rig.worker_id(engine))
        await rig.settled()
        assert rig.router.prefilled == ["r1"]


async def test_an_answer_that_comes_whole_says_nothing_of_its_first_token() -> None:
    async with Rig(FakeEngine()) as rig:
        request = prompt("r1")
        request.streaming = False
        assert await rig.answers(request)
        await rig.settled()
        assert not rig.router.prefilled


async def test_the_router_hears_how_much_was_said() -> None:
    async with Rig(FakeEngine()) as rig:
        messages = await rig.answers(prompt("r1"))
        await rig.settled()
        assert rig.router.output_tokens == [len(messages)]


async def test_routing_sees_what_it_needs() -> None:
    async with Rig(FakeEngine()) as rig:
        request = prompt("r1", 3, cache_salt_id=5)
        request.lora_config.task_id = 9
        await rig.answers(request)
        (decision,) = rig.router.decisions
        expected = block_hashes([1, 2, 3], 1, lora_name="9", cache_namespace="5")
        assert decision["prompt"].local_hashes.tolist() == expected.tolist()
        assert decision["expected_output_tokens"] == 4


async def test_a_request_without_an_id_is_given_one() -> None:
    async with Rig(FakeEngine(stall)) as rig:
        (engine,) = rig.engines
        calls = [rig.call(prompt("")), rig.call(prompt(""))]
        ids = {(await first(call)).request_id for call in calls}
        assert len(ids) == 2 and "" not in ids
        assert {r.request_id for r in engine.requests} == ids == set(rig.router.booked)
        engine.go.set()
        await rig.settled()


async def test_an_id_in_flight_is_refused_and_free_again_afterwards() -> None:
    async with Rig(FakeEngine(stall)) as rig:
        (engine,) = rig.engines
        call = rig.call(prompt("same"))
        await first(call)
        assert await rig.refusal(prompt("same")) == (
            Code.ALREADY_EXISTS,
            "request id 'same' is in use",
        )
        assert list(rig.router.booked) == ["same"]
        engine.go.set()
        assert len([m async for m in _rest(call)]) == 1
        await rig.settled()
        assert len(await rig.answers(prompt("same"))) == 2


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (b"\xff\xff\xff", "no trtllm.GenerateRequest"),
        (pb.GenerateRequest(request_id="x"), "empty prompt"),
        (prompt(tokens=0), "empty prompt"),
        (prompt(tokens=101), "a prompt of 101 tokens is longer than the model's limit of 100"),
        (
            pb.GenerateRequest(tokenized={"input_token_ids": [1, 1000]}),
            "token id 1000 is out of range: the model's vocabulary has 1000 tokens",
        ),
    ],
)
async def test_impossible_requests_are_refused_before_any_worker(
    request_: object, text: str
) -> None:
    async with Rig(FakeEngine()) as rig:
        code, details = await rig.refusal(request_)
        assert code is Code.INVALID_ARGUMENT and text in details
        assert not rig.engines[0].requests and rig.idle()


async def test_no_workers() -> None:
    async with Rig() as rig:
        code, details = await rig.refusal(prompt())
        assert code is Code.UNAVAILABLE and "no workers" in details


@pytest.mark.parametrize("code", [Code.INVALID_ARGUMENT, Code.INTERNAL, Code.NOT_FOUND])
async def test_an_engines_own_status_passes_through(code: grpc.StatusCode) -> None:
    async with Rig(FakeEngine(fail(code, "says so: é"))) as rig:
        assert await rig.refusal(prompt()) == (code, "says so: é")
        await rig.settled()


async def test_a_worker_that_is_gone_before_it_answers_is_replaced() -> None:
    async with Rig(FakeEngine(), FakeEngine(), FakeEngine()) as rig:
        dead, *alive = rig.engines
        await dead.stop()
        for number in range(3):  # each of them meets it first, or finds it inhibited
            assert len(await rig.answers(prompt(f"r{number}"))) == 3
        entry = rig.registry.entry(rig.worker_id(dead))
        await until(lambda: rig.registry.entry(entry.worker_id).state is WorkerState.UNHEALTHY)
        await rig.settled()
        await dead.start()
        await until(lambda: rig.registry.entry(entry.worker_id).state is WorkerState.READY)


async def test_a_full_worker_is_passed_over_and_not_blamed() -> None:
    full = fail(Code.RESOURCE_EXHAUSTED, "queue is full")
    async with Rig(FakeEngine(full), FakeEngine()) as rig:
        for number in range(8):
            assert len(await rig.answers(prompt(f"r{number}"))) == 3
        assert all(entry.state is WorkerState.READY for entry in rig.entries)
        rig.engines[1].script = full
        assert await rig.refusal(prompt()) == (Code.RESOURCE_EXHAUSTED, "queue is full")


async def test_attempts_are_bounded_and_never_on_one_worker_twice() -> None:
    lost = fail(Code.UNAVAILABLE, "going down")
    async with Rig(*(FakeEngine(lost) for _ in range(5)), max_attempts=3) as rig:
        code, details = await rig.refusal(prompt())
        assert code is Code.UNAVAILABLE and "lost before it answered: going down" in details
        assert sorted(len(engine.requests) for engine in rig.engines) == [0, 0, 1, 1, 1]
        await rig.settled()


async def test_every_worker_down() -> None:
    async with Rig(FakeEngine(), FakeEngine()) as rig:
        for engine in rig.engines:
            await engine.stop()
        code, _ = await rig.refusal(prompt("r1"))
        assert code is Code.UNAVAILABLE
        await until(lambda: all(e.state is WorkerState.UNHEALTHY for e in rig.entries))
        code, details = await rig.refusal(prompt("r2"))
        assert code is Code.UNAVAILABLE and "no workers" in details
        await rig.settled()


async def test_a_worker_that_dies_in_mid_stream_is_not_silently_replaced() -> None:
    async with Rig(FakeEngine(stall), FakeEngine(stall)) as rig:
        call = rig.call(prompt())
        await first(call)
        (engine,) = [e for e in rig.engines if e.requests]
        await engine.stop()
        with pytest.raises(aio.AioRpcError) as caught:
            async for _ in _rest(call):
                pass
        assert caught.value.code() is Code.UNAVAILABLE
        assert "lost in mid-stream after 1 messages" in caught.value.details()
        await rig.settled()
        assert sum(len(e.requests) for e in rig.engines) == 1


async def test_a_client_that_leaves_in_mid_stream_frees_its_slot_and_stops_its_worker() -> None:
    async with Rig(FakeEngine(stall)) as rig:
        (engine,) = rig.engines
        call = rig.call(prompt("gone"))
        await first(call)
        call.cancel()
        await until(lambda: engine.cancelled == ["gone"] and engine.aborted == ["gone"])
        await rig.settled()


async def test_a_long_answer_keeps_its_booking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "TOUCH_EVERY_S", 0.01)
    async with Rig(FakeEngine(stall)) as rig:
        call = rig.call(prompt("long"))
        await first(call)
        await until(lambda: rig.router.touched.count("long") > 2)
        call.cancel()
        await rig.settled()


async def test_nothing_holds_a_request_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "TOUCH_EVERY_S", 0.01)
    async with Rig(FakeEngine(stall)) as rig:
        call = rig.call(prompt())
        await first(call)
        await until(lambda: rig.router.touched)
        rig.engines[0].go.set()
        assert await call.read() is not aio.EOF
        assert await call.read() is aio.EOF
        await rig.settled()

        def kept() -> bool:
            gc.collect()
            return any(isinstance(each, Request | Attempt) for each in gc.get_objects())

        del call
        await until(lambda: not kept())


async def test_a_client_that_leaves_before_the_first_token_does_so_too() -> None:
    async with Rig(FakeEngine(hang)) as rig:
        (engine,) = rig.engines
        call = rig.call(prompt("gone"))
        await rig.running(engine)
        call.cancel()
        await until(lambda: engine.cancelled == ["gone"] and engine.aborted == ["gone"])
        await rig.settled()
        assert not rig.router.prefilled


async def test_a_deadline_ends_it_everywhere() -> None:
    async with Rig(FakeEngine(hang)) as rig:
        (engine,) = rig.engines
        code, _ = await too_late(
            lambda seconds: rig.refusal(prompt("late"), timeout=seconds), lambda: engine.requests
        )
        assert code is Code.DEADLINE_EXCEEDED
        await until(lambda: engine.cancelled == ["late"])
        await rig.settled()
        assert all(entry.state is WorkerState.READY for entry in rig.entries)


async def test_a_silent_worker_is_given_up_for_another() -> None:
    async with Rig(FakeEngine(hang), FakeEngine(hang), silence_s=3.0) as rig:
        call = rig.call(prompt("r1"))
        await until(lambda: any(engine.requests for engine in rig.engines))
        (silent,) = [e for e in rig.engines if e.requests]
        (other,) = [e for e in rig.engines if not e.requests]
        other.script = answer
        assert len([m async for m in call]) == 3
        await until(lambda: silent.aborted == ["r1"])
        await rig.settled()


async def test_silence_in_mid_stream_ends_the_request() -> None:
    async with Rig(FakeEngine(stall), silence_s=0.2) as rig:
        code, details = await rig.refusal(prompt("r1"))
        assert code is Code.UNAVAILABLE
        assert "lost in mid-stream after 1 messages: it was silent for too long" in details
        await until(lambda: rig.engines[0].aborted == ["r1"])
        await rig.settled()


async def test_requests_that_fail_in_a_row_eject_a_worker_but_never_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outliers, "SHORTEST_PENALTY_S", 1e-4)
    broken = fail(Code.INTERNAL, "broken")
    async with Rig(FakeEngine(broken), FakeEngine()) as rig:
        bad, good = rig.engines
        bad_id, good_id = rig.worker_id(bad), rig.worker_id(good)
        for number in itertools.count():
            assert len(await rig.answers(prompt(f"r{number}"))) == 3
            if rig.registry.entry(bad_id).state is WorkerState.UNHEALTHY:
                break
        assert len(bad.requests) == 5
        assert "5 requests in a row" in rig.registry.entry(bad_id).reason
        assert rig.monitor.reports.errors == {(bad_id, "internal"): 5}
        good.script = broken
        for number in range(20):
            assert await rig.refusal(prompt(f"s{number}")) == (Code.INTERNAL, "broken")
        assert rig.registry.entry(good_id).state is WorkerState.READY


async def test_abort_reaches_the_worker_that_has_the_request() -> None:
    async with Rig(FakeEngine(stall), FakeEngine(stall)) as rig:
        call = rig.call(prompt("r1"))
        await first(call)
        said = await rig.unary("Abort", pb.AbortRequest(request_id="r1"), pb.AbortResponse)
        assert said.success
        (engine,) = [e for e in rig.engines if e.requests]
        (other,) = [e for e in rig.engines if not e.requests]
        assert (engine.aborted, other.aborted) == (["r1"], [])
        engine.go.set()
        assert len([m async for m in _rest(call)]) == 1
        await rig.settled()


async def test_an_unknown_abort_is_no_error() -> None:
    async with Rig(FakeEngine()) as rig:
        said = await rig.unary("Abort", pb.AbortRequest(request_id="x"), pb.AbortResponse)
        assert (said.success, said.message) == (False, "request x not found")


async def test_an_abort_whose_worker_is_dead_lets_go() -> None:
    async with Rig(FakeEngine(hang), FakeEngine()) as rig:
        call = rig.call(prompt("r1"), metadata=_pin(rig, rig.engines[0]))
        await rig.running(rig.engines[0])
        await rig.engines[0].stop()
        said = await rig.unary("Abort", pb.AbortRequest(request_id="r1"), pb.AbortResponse)
        assert said.success or "not found" in said.message
        assert await call.code() in (Code.UNAVAILABLE, Code.CANCELLED)
        await rig.settled()


async def test_a_request_may_name_its_worker() -> None:
    async with Rig(FakeEngine(), FakeEngine()) as rig:
        for engine in rig.engines:
            before = len(engine.requests)
            for number in range(3):
                await rig.answers(prompt(f"r{number}"), metadata=_pin(rig, engine))
            assert len(engine.requests) == before + 3
        code, details = await rig.refusal(
            prompt(), metadata=(("x-dynamo-worker-instance-id", "seven"),)
        )
        assert code is Code.INVALID_ARGUMENT and "'seven'" in details
        await rig.engines[0].stop()
        code, _ = await rig.refusal(prompt(), metadata=_pin(rig, rig.engines[0]))
        assert code is Code.UNAVAILABLE and len(rig.engines[1].requests) == 3


async def test_trace_context_goes_on_to_the_worker_and_other_metadata_does_not() -> None:
    async with Rig(FakeEngine()) as rig:
        await rig.answers(prompt(), metadata=(("traceparent", "00-1-2-01"), ("secret", "x")))
        (seen,) = rig.engines[0].metadata
        assert seen["traceparent"] == "00-1-2-01" and "secret" not in seen


async def test_a_worker_of_several_ranks_is_told_which_one_was_meant() -> None:
    engine = FakeEngine()
    engine.dp_size = 2
    async with Rig(engine) as rig:
        for number in range(4):
            await rig.answers(prompt(f"r{number}"))
        assert [seen["x-dynamo-dp-rank"] for seen in engine.metadata] == ["0", "1", "0", "1"]


async def test_shutdown_drains_and_then_cuts_off() -> None:
    async def one_of_them_ends(engine, request, context):  # type: ignore[no-untyped-def]
        yield chunk(request, 11)
        await (engine.go if request.request_id == "drained" else asyncio.Event()).wait()
        yield complete(request, 11)

    async with Rig(FakeEngine(one_of_them_ends)) as rig:
        (engine,) = rig.engines
        drained, cut = rig.call(prompt("drained")), rig.call(prompt("cut"))
        await first(drained)
        await first(cut)
        stopping = asyncio.create_task(rig.server.stop(0.5))
        await asyncio.sleep(0)
        engine.go.set()
        assert len([m async for m in _rest(drained)]) == 1
        with pytest.raises(aio.AioRpcError):
            async for _ in _rest(cut):
                pass
        await stopping
        await until(lambda: engine.cancelled == ["cut"] and engine.aborted == ["cut"])
        await rig.settled()


async def test_a_reader_that_is_slow_is_not_taken_for_a_silent_worker() -> None:
    async def flood(engine, request, context):  # type: ignore[no-untyped-def]
        for _ in range(64):
            yield chunk(request, *range(30000))

    async with Rig(FakeEngine(flood), silence_s=1.0) as rig:
        call = rig.call(prompt())
        await first(call)
        await asyncio.sleep(2.5)  # the fault itself: a client that reads nothing for a while
        assert len([m async for m in _rest(call)]) == 63
        await rig.settled()


async def _rest(call):  # type: ignore[no-untyped-def]
    while (message := await call.read()) is not aio.EOF:
        yield message


def _pin(rig: Rig, engine: FakeEngine) -> tuple[tuple[str, str], ...]:
    return (("x-dynamo-worker-instance-id", str(rig.worker_id(engine))),)


async def test_a_request_that_was_read_already_is_served_like_its_bytes() -> None:
    async with Rig(FakeEngine()) as rig:
        (engine,) = rig.engines

        async def served(request: bytes | ReadRequest) -> list[bytes]:
            got: list[bytes] = []

            async def keep(message: bytes) -> None:
                got.append(message)

            await rig.dispatcher.generate(request, keep)
            return got

        body = prompt("r1").SerializeToString()
        read = ReadRequest(body, read_generate(body, rig.router.block_size))
        assert await served(read) == await served(body) and rig.idle()
        body = prompt("").SerializeToString()  # it is given an id, which its engine gets
        await served(ReadRequest(body, read_generate(body, rig.router.block_size)))
        assert [request.request_id for request in engine.requests][:2] == ["r1", "r1"]
        assert engine.requests[2].request_id
        with pytest.raises(InvalidRequestError, match="control character"):
            await served(ReadRequest(body, replace(read.facts, request_id="\x02r1")))
        assert rig.idle()
