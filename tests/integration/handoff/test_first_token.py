"""The prefill engine's token as the client's first, where the decode engine goes on from it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest
from support.fake_engine import prompt
from support.handoffs.fabric import CACHED, greedy
from support.handoffs.scene import TOKENS, Scene, aggregated, scene
from support.handoffs.wires import WIRES
from support.polling import until

from dynamo_router.server.request_limits import HandoffLimits, RequestLimits
from dynamo_router.workers.trtllm_proto import SERVICE, pb

STORM = int(os.environ.get("CANCEL_STORM", "0"))
"""Clients that leave at once, before each dialect; 0: some."""
MOVING = RequestLimits(migration_limit=1)
GOING_ON = ["mock", "trtllm-serve", "openengine", "openengine-session-last"]
"""Whose decode engines begin with the token that they were handed."""
PROMPT = range(1, TOKENS + 1)
FIRST = greedy(PROMPT, 1)[0]


def streamed(on: Scene, request: Any) -> AsyncIterator[Any]:
    call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
    stream: AsyncIterator[bytes] = aiter(call(request.SerializeToString()))

    async def messages() -> AsyncIterator[Any]:
        async for message in stream:
            yield pb.GenerateResponse.FromString(message)

    return messages()


@pytest.mark.parametrize("name", GOING_ON)
async def test_it_comes_before_the_prompt_is_handed_over(name: str) -> None:
    """And the answer is that of one worker: text, usage, each token once."""
    whole = await aggregated(name)
    async with scene(name, limits=MOVING) as on:
        on.decode[0].legs.faults = ["slow"]
        messages = streamed(on, prompt("r1", TOKENS))
        first = await anext(messages)
        assert list(first.chunk.token_ids) == [FIRST] and first.request_id == "r1"
        assert (first.chunk.completion_tokens, first.chunk.cached_tokens) == (1, CACHED)
        await until(lambda: bool(on.decode[0].legs.asked))
        on.decode[0].legs.go.set()
        found = [first, *[each async for each in messages]]
        tokens = [token for each in found for token in each.chunk.token_ids]
        last = found[-1].complete
        assert tokens == list(last.output_token_ids) == list(whole.output_token_ids)
        for count in ("prompt_tokens", "completion_tokens", "cached_tokens", "finish_reason"):
            assert getattr(last, count) == getattr(whole, count), count
        metrics = await on.ports.metrics()
        assert metrics["dynamo_router_disagg_handoff_seconds_count"] == 1


def with_stop(request: Any) -> None:
    request.stop.append("end")


def with_logprobs(request: Any) -> None:
    request.output_config.logprobs = 1


def with_the_tokens_own_logprob(request: Any) -> None:
    request.output_config.logprobs = 0


def whole_answer(request: Any) -> None:
    request.streaming = False


CHANGES = [None, with_stop, with_logprobs, with_the_tokens_own_logprob, whole_answer]


@pytest.mark.parametrize("change", CHANGES)
async def test_it_waits_where_the_rest_could_not_be_asked_of_another_pair(
    change: Callable[[Any], None] | None,
) -> None:
    """With no migration, too: until the decode worker's first token the pair is chosen anew."""
    limits = MOVING if change is not None else RequestLimits()
    async with scene("mock", limits=limits, decode=2) as on:
        request = prompt("r1", TOKENS)
        if change is not None:
            change(request)
        for wire in on.decode:
            wire.legs.faults = ["slow", ""]
        messages = streamed(on, request)
        first = asyncio.ensure_future(anext(messages))
        asked = lambda: [wire for wire in on.decode if wire.legs.asked]  # noqa: E731
        await until(lambda: bool(asked()))
        (wire,) = asked()
        assert not first.done()
        wire.legs.go.set()
        found = [await first, *[each async for each in messages]]
        assert list(found[-1].complete.output_token_ids) == greedy(PROMPT, 4)


@pytest.mark.parametrize("fault", ["refuse", "unavailable", "die", "empty", "hang", "other_token"])
@pytest.mark.parametrize("name", GOING_ON)
async def test_a_decode_worker_that_fails_has_another_pair_go_on(name: str, fault: str) -> None:
    """From the token that the client has, which it gets once."""
    async with scene(name, decode=2, limits=MOVING) as on:
        on.give(on.decode, fault)
        last = await on.answer()
        assert list(last.output_token_ids) == [FIRST, *greedy([*PROMPT, FIRST], 3)]
        assert (last.completion_tokens, last.prompt_tokens) == (4, TOKENS)
        if name.startswith("openengine") and fault in ("die", "empty", "hang"):
            await on.failed("unread")  # nobody knows whether it has read
            on.fabric.held.clear()
        await on.failed({"empty": "decode_empty", "hang": "handoff_timeout"}.get(fault, "decode"))


async def test_a_decode_worker_that_is_down_before_it_began_is_left_at_once() -> None:
    """It has no token of the answer: what the client has is the prefill worker's."""
    async with scene("mock", decode=2, limits=MOVING) as on:
        for wire in on.decode:
            wire.legs.faults = ["hang", ""]
        messages = streamed(on, prompt("r1", TOKENS))
        found = [await anext(messages)]
        await until(lambda: any(wire.legs.asked for wire in on.decode))
        (wire,) = [wire for wire in on.decode if wire.legs.asked]
        (other,) = [each for each in on.decode if each is not wire]
        other.legs.faults = []
        (request,) = on.pools.workers.dispatcher.requests
        for down in on.pools.workers.monitor.on_down:
            down(request.attempt.worker_id)
        async with asyncio.timeout(HandoffLimits().disagg_handoff_timeout_s / 3):
            found += [each async for each in messages]
        assert list(found[-1].complete.output_token_ids) == [FIRST, *greedy([*PROMPT, FIRST], 3)]
        wire.legs.faults = []


async def test_the_time_in_which_an_attempt_begins_is_the_decode_workers() -> None:
    limits = RequestLimits(migration_limit=1, attempt_timeout_s=1.0)
    async with scene("mock", decode=2, limits=limits) as on:
        on.decode[0].legs.faults = ["hang"]
        async with asyncio.timeout(HandoffLimits().disagg_handoff_timeout_s / 3):
            for number in range(8):
                last = await on.answer(f"r{number}")
                if not on.decode[0].legs.faults:
                    break
        assert list(last.output_token_ids) == [FIRST, *greedy([*PROMPT, FIRST], 3)]


@pytest.mark.parametrize("name", GOING_ON)
async def test_clients_that_leave_between_the_two_first_tokens_leave_nothing(name: str) -> None:
    async with scene(name, limits=MOVING) as on:
        count = STORM or 40

        async def leaves(number: int) -> None:
            call = on.ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
            stream = call(prompt(f"r{number}", TOKENS).SerializeToString())
            if number % 3:
                with suppress(grpc.aio.AioRpcError):  # a storm is a flood to the listener
                    await anext(aiter(stream))
            stream.cancel()

        on.decode[0].legs.faults = ["slow"] * count
        for begin in range(0, count, 40):
            await asyncio.gather(*(leaves(begin + number) for number in range(40)))
        on.decode[0].legs.go.set()


async def test_a_request_that_each_decode_worker_refuses_is_to_blame_itself() -> None:
    """A prefill worker's token says nothing of the decode worker that failed before."""
    limits = RequestLimits(migration_limit=3)
    async with scene("mock", decode=4, limits=limits) as on:
        reports = on.pools.workers.monitor.reports
        convicted: list[int] = []
        reports.convicted = lambda worker_id, verdict: convicted.append(worker_id)
        for wire in on.decode:
            wire.legs.faults = ["refuse"]
        with pytest.raises(grpc.aio.AioRpcError):
            await on.answer()
        assert sum(len(wire.legs.asked) for wire in on.decode) == 2
        assert not convicted


@pytest.mark.parametrize("name", [name for name in WIRES if name not in GOING_ON])
async def test_engines_that_make_their_own_begin_the_answer(name: str) -> None:
    """As their first token need not be the prefill engine's."""
    async with scene(name, limits=MOVING) as on:
        on.decode[0].legs.faults = ["other_token"]
        last = await on.answer()
        assert list(last.output_token_ids) == [FIRST + 1, *greedy(PROMPT, 4)[1:]]
