"""A request on two workers at the gRPC door: what each leg is sent, and what if one fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import structlog
from support.fake_engine import FakeEngine, Script, chunk, complete, fail, hang, prompt
from support.fake_engine import answer as answers_whole
from support.polling import until
from support.serving import Ports, serving

from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.server.request_limits import HandoffLimits
from dynamo_router.workers.dialects import CONTEXT_ONLY, given_handoff, with_handoff
from dynamo_router.workers.trtllm_proto import SERVICE, pb

ALWAYS = DisaggConfig(disagg="always")
LIMITS = {
    "prefill_timeout": HandoffLimits(disagg_prefill_timeout_s=1.0),
    "handoff_timeout": HandoffLimits(disagg_handoff_timeout_s=1.0),
}
"""Of phases that end by a limit; all others have the usual ones, as does what works there."""
PARCEL = b'{"blocks": [1, 2]}'


def handing_over(parcel: bytes = PARCEL, reason: str = "length") -> Script:
    async def script(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        first, last = chunk(request, 11), complete(request, 11)
        first.chunk.cached_tokens = last.complete.cached_tokens = 5
        last.complete.finish_reason = reason
        yield first
        yield pb.GenerateResponse.FromString(with_handoff(last.SerializeToString(), parcel))

    return script


async def nothing(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    """A success without a message."""
    return
    yield


async def blank(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    """A success without a token, as of an engine whose partner never came."""
    last = complete(request)
    last.complete.finish_reason = "abort"
    yield last


def failing_once(script: Script) -> Script:
    """Of several workers: the first that is asked does this, the others answer."""
    asked: list[str] = []

    async def either(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        chosen = answers_whole if asked else script
        asked.append(request.request_id)
        async for message in chosen(engine, request, context):
            yield message

    return either


@asynccontextmanager
async def pair(
    first: Script, then: Script = answers_whole, **config: Any
) -> AsyncIterator[tuple[Ports, FakeEngine, FakeEngine]]:
    """A prefill worker, a decode worker, and a router in front of them; afterwards nothing is
    booked at either."""
    config.setdefault("disagg", ALWAYS)
    async with FakeEngine(first, worker_id=1) as prefill, FakeEngine(then, worker_id=2) as decode:
        async with serving(
            workers=(decode.url,), prefill_workers=(prefill.url,), **config
        ) as ports:
            pools: Any = ports.server._server.pools
            await until(lambda: pools.prefill.monitor.any_ready)
            yield ports, prefill, decode
            await until(lambda: not any(pool.in_flight for pool in pools.running))
            for pool in pools.running:
                assert int(pool.router.slots.own_requests().sum()) == 0
                assert int(pool.router.slots.active_blocks().sum()) == 0


def failures(phase: str) -> str:
    return f'dynamo_router_disagg_failures_total{{phase="{phase}"}}'


async def test_each_leg_is_sent_its_part_and_the_answer_is_one() -> None:
    logged = ObservabilityConfig(access_log=True)
    with structlog.testing.capture_logs() as caplog:
        await answered_by_both(logged, caplog)


async def answered_by_both(logged: ObservabilityConfig, caplog: list[Any]) -> None:
    async with pair(handing_over(), observability=logged) as (ports, prefill, decode):
        call = ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        stream = call(prompt("r1", 32).SerializeToString())
        found = [pb.GenerateResponse.FromString(message) async for message in stream]
        (first,), (then,) = prefill.requests, decode.requests
        assert first.max_tokens == 1
        assert first.disaggregated_params.request_type == CONTEXT_ONLY
        assert given_handoff(then) == PARCEL and then.max_tokens == 4
        assert [message.request_id for message in found] == ["r1"] * 3
        assert [list(each.chunk.token_ids) for each in found[:2]] == [[11], [12]]
        assert found[-1].complete.prompt_tokens == 32
        assert found[-1].complete.cached_tokens == 5, "that the prefill worker had"
        told = {key: str(value) for key, value in await stream.trailing_metadata()}
        assert told["x-dynamo-worker-id"] == "2" and told["x-dynamo-prefill-worker-id"] == "1"
        (line,) = [each for each in caplog if each["event"] == "request ended"]
        assert (line["disagg"], line["prefill_worker_id"], line["worker_id"]) == ("always", 1, 2)
        await ports.shows(
            'dynamo_router_disagg_decisions_total{prefill="remote",reason="always"}', 1
        )
        assert (await ports.metrics())["dynamo_router_disagg_handoff_seconds_count"] == 1


FAILING: dict[str, tuple[Script, Script]] = {
    "prefill": (fail(grpc.StatusCode.INTERNAL, "no memory"), answers_whole),
    "prefill_timeout": (hang, answers_whole),
    "prefill_empty": (nothing, answers_whole),
    "no_parcel": (answers_whole, answers_whole),
}


@pytest.mark.parametrize("phase", FAILING)
async def test_a_prefill_that_fails_is_computed_elsewhere(phase: str) -> None:
    """Within its own deadline; by the decode worker, where there is no other prefill worker."""
    first, then = FAILING[phase]
    async with pair(first, then, handoff=LIMITS.get(phase, HandoffLimits())) as (
        ports,
        prefill,
        decode,
    ):
        found = await ports.answers(prompt("r1", 32))
        assert list(found[-1].complete.output_token_ids) == [11, 12]
        assert [each.request_id for each in prefill.requests] == ["r1"]
        assert [given_handoff(each) for each in decode.requests] == [None]
        await ports.shows(failures(phase), 1)
        if phase == "prefill_timeout":
            await until(lambda: prefill.cancelled == ["r1"])


async def test_a_parcel_that_names_another_host_goes_nowhere() -> None:
    parcel = b'{"remote_host": "169.254.169.254", "remote_port": 80}'
    async with pair(handing_over(parcel)) as (ports, _, decode):
        found = await ports.answers(prompt("r1", 32))
        assert list(found[-1].complete.output_token_ids) == [11, 12]
        assert [given_handoff(each) for each in decode.requests] == [None]
        await ports.shows(failures("no_parcel"), 1)


LOSING: dict[str, Script] = {
    "decode": fail(grpc.StatusCode.INVALID_ARGUMENT, "none of a partner of this engine"),
    "decode_empty": blank,
    "handoff_timeout": hang,
}


@pytest.mark.parametrize("phase", LOSING)
async def test_a_decode_worker_that_fails_has_the_pair_chosen_anew(phase: str) -> None:
    """Engines hear of the second attempt by another id, its client by its own alone."""
    script = failing_once(LOSING[phase])
    other = FakeEngine(script, worker_id=3)
    limits = LIMITS.get(phase, HandoffLimits())
    async with other, pair(handing_over(), script, handoff=limits) as (ports, prefill, decode):
        ports.server.monitor.add(other.url)
        await until(lambda: len(ports.server.monitor.ready_clients()) == 2)
        found = await ports.answers(prompt("r1", 32))
        assert list(found[-1].complete.output_token_ids) == [11, 12]
        assert {message.request_id for message in found} == {"r1"}
        assert [each.request_id for each in prefill.requests] == ["r1", "r1~1"]
        asked = [each.request_id for engine in (decode, other) for each in engine.requests]
        assert sorted(asked) == ["r1", "r1~1"]
        assert len(decode.requests) == len(other.requests) == 1, "each was asked once"
        await ports.shows(failures(phase), 1)


async def test_the_last_decode_worker_that_refuses_a_parcel_is_not_its_clients_fault() -> None:
    refused = fail(grpc.StatusCode.INVALID_ARGUMENT, "none of a partner of this engine")
    async with pair(handing_over(), refused) as (ports, *_):
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await ports.answers(prompt("r1", 32))
        assert told.value.code() is grpc.StatusCode.INTERNAL
        assert PARCEL.decode() not in str(told.value)


async def test_a_cancel_reaches_the_prefill_worker() -> None:
    async with pair(hang) as (ports, prefill, decode):
        call = ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        streams = [call(prompt(f"r{n}", 32).SerializeToString()) for n in range(50)]
        await until(lambda: len(prefill.requests) == 50)
        for stream in streams:
            stream.cancel()
        await until(lambda: len(prefill.cancelled) == 50)
        assert decode.requests == []


async def test_an_abort_reaches_the_prefill_worker() -> None:
    async with pair(hang) as (ports, prefill, _):
        answers = asyncio.ensure_future(ports.answers(prompt("r1", 32)))
        await until(lambda: bool(prefill.requests))
        asked = pb.AbortRequest(request_id="r1")
        answer = await ports.trtllm("Abort", asked, pb.AbortResponse)
        assert answer.success and prefill.aborted == ["r1"]
        answers.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answers


async def test_a_prefill_that_ends_the_answer_is_the_answer() -> None:
    async with pair(handing_over(reason="stop")) as (ports, _, decode):
        found = await ports.answers(prompt("r1", 32))
        assert found[-1].complete.finish_reason == "stop"
        assert PARCEL not in b"".join(message.SerializeToString() for message in found)
        assert decode.requests == []


@pytest.mark.parametrize("reason", ["error", "boom\n2026 [info] x"])
async def test_a_prefill_that_ends_for_no_reason_is_the_prefill_workers_failure(
    reason: str,
) -> None:
    async with pair(handing_over(reason=reason)) as (ports, prefill, decode):
        found = await ports.answers(prompt("r1", 32))
        assert found[-1].complete.finish_reason == "length"
        assert len(prefill.requests) == len(decode.requests) == 1
        await ports.shows('dynamo_router_disagg_failures_total{phase="prefill"}', 1)


async def test_an_answer_of_one_token_is_the_prefill_workers() -> None:
    async with pair(answers_whole) as (ports, prefill, decode):
        asked = prompt("r1", 32)
        asked.max_tokens = 1
        await ports.answers(asked)
        assert not prefill.requests[0].HasField("disaggregated_params")
        assert decode.requests == []


@pytest.mark.parametrize("what", ["answers", "prompt_logprobs"])
async def test_what_two_workers_cannot_share_goes_to_the_decode_worker(what: str) -> None:
    async with pair(handing_over()) as (ports, prefill, decode):
        asked = prompt("r1", 32)
        if what == "answers":
            asked.sampling_config.num_return_sequences = 2
        else:
            asked.output_config.prompt_logprobs = 1
        await ports.answers(asked)
        assert prefill.requests == [] and len(decode.requests) == 1


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_leg_that_a_client_names_is_refused_unless_trusted(trusted: bool) -> None:
    limits = HandoffLimits(trust_handoff_fields=trusted)
    async with pair(handing_over(), handoff=limits) as (ports, prefill, decode):
        asked = prompt("r1", 32)
        asked.disaggregated_params.request_type = CONTEXT_ONLY
        if trusted:
            await ports.answers(asked)
            assert decode.requests[0].disaggregated_params.request_type == CONTEXT_ONLY
        else:
            with pytest.raises(grpc.aio.AioRpcError, match="disaggregated_params"):
                await ports.answers(asked)
            assert prefill.requests == decode.requests == []


async def test_both_sums_and_the_regret_of_a_decision_are_shown() -> None:
    logged = ObservabilityConfig(access_log=True)
    with structlog.testing.capture_logs() as lines:
        async with pair(handing_over(), disagg=DisaggConfig(), observability=logged) as (ports, *_):
            await ports.answers(prompt("r1", 32))
            receipt = await ports.server.dashboard.receipts.receipt("r1")
            assert receipt is not None
            shown = receipt["disagg"]
            assert shown["prefill"] in ("local", "remote") and shown["reason"]
            assert shown["local_s"] > 0 and shown["remote_s"] > 0
            assert isinstance(shown["regret_s"], float)
            found = await ports.metrics()
            for way in ("local", "remote"):
                name = f"dynamo_router_disagg_{way}_forecast_seconds"
                assert found[f"{name}_count"] == 1
                assert found[f"{name}_sum"] == pytest.approx(shown[f"{way}_s"])
            assert found['dynamo_router_disagg_regret_seconds_bucket{le="+Inf"}'] == 1
    (line,) = [each for each in lines if each.get("request_id") == "r1"]
    assert line["disagg_local_s"] == pytest.approx(shown["local_s"], abs=1e-6)
