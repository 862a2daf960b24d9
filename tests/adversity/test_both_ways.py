"""What holds of a plain chat however it goes and ends, on its own way and on that of all others."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from os import environ
from typing import Any

import grpc
import pytest
from support.fake_engine import FakeEngine, chunk, complete, fail, hang, stall
from support.frontend.chat_ways import ROUTER, WAYS, Answer, chat, chat_server, text_of
from support.polling import until

from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.policies import guarded
from dynamo_router.router.policy import Policy
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.request_limits import RequestLimits

Code = grpc.StatusCode
IDS = [64, 65, 300, 66, 1000, 2001, 67]
pytestmark = pytest.mark.parametrize("way", WAYS)


async def in_steps(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    for number in IDS:
        yield chunk(request, number)
    yield complete(request, *IDS)


async def breaks(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    """Of an engine that is killed after so many tokens of its answer."""
    for number in IDS[: engine.breaks_after]:  # type: ignore[attr-defined]
        yield chunk(request, number)
    await engine.go.wait()
    yield complete(request, *IDS)


async def test_texts_and_usage_are_what_the_engine_said(way: str) -> None:
    engine = FakeEngine(in_steps)
    async with chat_server(way, engine) as chats:
        for limits in ({}, {"temperature": 0.5, "top_k": 3, "ignore_eos": True}):
            found = await chats.ask(chat(**limits))
            (asked,) = engine.requests
            engine.requests.clear()
            engine.ended.clear()
            tokens = len(asked.tokenized.input_token_ids)
            usage = tokens, len(IDS)
            assert found == Answer(200, text_of(IDS), "length", usage, "", whole=True)
        chats.taken.check(way)
        assert {(r.status, r.error) for r in chats.ended} == {(200, "")}


async def test_a_body_cut_at_each_byte(way: str) -> None:
    body = chat("a é漢👩‍👧 of")
    size = len(json.dumps(body, ensure_ascii=False).encode())
    async with chat_server(way, engine := FakeEngine(in_steps)) as chats:
        for part in range(0, size, 1 if environ.get("ADVERSITY_PROFILE") == "long" else 9):
            found = await (await chats.send(body, part=part)).answer()
            assert (found.text, found.whole) == (text_of(IDS), True)
        asked = {tuple(request.tokenized.input_token_ids) for request in engine.requests}
        assert len(asked) == 1


@pytest.mark.parametrize("after", [0, 1, 4, len(IDS)])
async def test_an_engine_that_is_killed_in_each_phase(way: str, after: int) -> None:
    first, second = FakeEngine(breaks), FakeEngine(breaks)
    async with chat_server(way, first, second) as chats:
        for engine in chats.engines:
            engine.breaks_after = after  # type: ignore[attr-defined]
        client = await chats.send(chat())
        await until(lambda: first.requests or second.requests)
        killed, other = (first, second) if first.requests else (second, first)
        other.script = in_steps
        if after:
            await client.begun()
        await killed.stop()
        data = await client.answer()
        await until(lambda: not chats.server.dispatcher.in_flight)
        if not after:
            assert data.text == text_of(IDS) and data.reason == "length" and data.whole
            assert [record.error for record in chats.ended] == [""]
        else:
            (record,) = chats.ended
            assert "lost in mid-stream" in record.error and record.failure == 503
        chats.taken.check(way, decided=False)
        killed.requests.clear()
        killed.ended.clear()


@pytest.mark.parametrize(
    "code, status",
    [(Code.RESOURCE_EXHAUSTED, 429), (Code.INTERNAL, 500), (Code.INVALID_ARGUMENT, 400)],
)
async def test_what_engines_refuse_is_refused(way: str, code: Any, status: int) -> None:
    async with chat_server(
        way, FakeEngine(fail(code, "no slot")), FakeEngine(fail(code, "no slot"))
    ) as chats:
        found = await chats.ask(chat())
        assert found.status == status and found.whole
        await chats.settled()
        assert [record.status for record in chats.ended] == [status]
        chats.taken.check(way, decided=False)


async def test_a_garbled_message_of_an_engine_is_its_failure(way: str) -> None:
    async def garbled(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        yield chunk(request, 64)
        yield Garbage()

    async with chat_server(way, FakeEngine(garbled)) as chats:
        found = await chats.ask(chat())
        assert (found.status, found.text, found.reason, found.whole) == (
            200,
            text_of([64]),
            None,
            True,
        )
        assert found.error
        await chats.settled()
        assert chats.ended[0].error and chats.ended[0].failure


class Garbage:
    def SerializeToString(self) -> bytes:
        return b"\x12\xff\xff\xff\xff\x0f\x01"


class Raising(Policy):
    """A policy of one's own."""

    name = "raising"

    def score(self, candidates: Any) -> Any:
        raise ZeroDivisionError("of one's own")


async def test_a_policy_of_ones_own_that_raises_ends_no_chat(way: str) -> None:
    async with chat_server(way, FakeEngine(in_steps), FakeEngine(in_steps)) as chats:
        router = chats.server.router
        router._choice.policy = router._policy = guarded(Raising(), "raising", router.config)
        router._plain = None  # it is of the policy that was there
        for _ in range(3):
            found = await chats.ask(chat())
            assert (found.text, found.whole) == (text_of(IDS), True)
        assert router.policy_failures >= 3
        chats.taken.check(way, decided=False)


async def test_requests_beyond_the_limit_are_refused_and_give_their_room_back(way: str) -> None:
    limits = CallerLimits(max_requests=2, max_share_per_caller=1.0)
    async with chat_server(way, engine := FakeEngine(stall), peers=limits) as chats:
        running = [await chats.send(chat()) for _ in range(2)]
        await until(lambda: len(engine.requests) == 2)
        assert (await chats.ask(chat())).status == 429
        engine.go.set()
        assert all([(await each.answer()).whole for each in running])
        assert (await chats.ask(chat())).whole
        await chats.settled()
        assert sorted(record.status for record in chats.ended) == [200, 200, 200, 429]


async def waits(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    await engine.go.wait()
    async for message in in_steps(engine, request, context):
        yield message


async def test_who_waits_for_a_slot_may_leave_or_be_served(way: str) -> None:
    admission = AdmissionConfig(queue_threshold=0)
    router = replace(ROUTER, admission=admission)
    async with chat_server(way, engine := FakeEngine(waits), router=router) as chats:
        first = await chats.send(chat())
        await until(lambda: engine.requests)
        queue = chats.server.pool.decider.queue
        waiting = [await chats.send(chat()) for _ in range(3)]
        await until(lambda: len(queue) == 3)
        await waiting[1].leaves()
        await until(lambda: len(queue) == 2)
        engine.go.set()
        for each in (first, waiting[0], waiting[2]):
            assert (await each.answer()).whole
        assert len(engine.requests) == 3


@pytest.mark.parametrize("script", [hang, stall])
async def test_a_client_that_leaves_frees_its_worker(way: str, script: Any) -> None:
    async with chat_server(way, engine := FakeEngine(script)) as chats:
        client = await chats.send(chat())
        await until(lambda: engine.requests)
        if script is stall:
            await client.begun()
        await client.leaves()
        await chats.settled()
        assert not engine.finished
        (record,) = chats.ended
        assert record.status == (499 if script is hang else 200)
        chats.taken.check(way, decided=False)


FLOOD = 1200
EACH = [64 + number % 20 for number in range(5000)]
"""Of a flood's messages: more than all buffers of the system take together."""


async def floods(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    for _ in range(FLOOD):
        yield chunk(request, *EACH)
    yield complete(request)


async def test_a_client_that_leaves_while_it_is_written_to(way: str) -> None:
    async with chat_server(way, engine := FakeEngine(floods)) as chats:
        for read in (1, 50_000):
            client = await chats.send(chat(), buffer=4096)
            await client.reader.readexactly(read)
            await client.leaves()
            await chats.settled()
        assert len(engine.ended) == 2 and not engine.finished
        chats.taken.check(way, decided=False)  # there are two decisions, of a busy machine


async def test_a_client_that_does_not_read_holds_its_engine_back_and_gets_all(way: str) -> None:
    sent = 0

    async def counted(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        nonlocal sent
        async for message in floods(engine, request, context):
            sent += 1
            yield message

    async with chat_server(way, FakeEngine(counted)) as chats:
        client = await chats.send(chat(), buffer=4096)
        await until(lambda: not full(chats))
        held = await at_rest(lambda: sent)
        assert held < FLOOD
        found = await client.answer()
        assert found.text == text_of(EACH) * FLOOD
        assert found.whole and found.usage is not None
        assert found.usage[1] == FLOOD * len(EACH)
        chats.taken.check(way, decided=False)  # it is one decision, of a busy machine


def full(chats: Any) -> bool:
    """Whether no client has a buffer that is full."""
    return all(each.client.reads for each in chats.connections.open)


async def at_rest(count: Any) -> int:
    """What it comes to once it does not change."""
    found = -1
    for _ in range(200):
        last, found = found, count()
        if last == found and found:
            break
        await asyncio.sleep(0.05)
    return found


async def test_a_silent_engine_is_given_up_for_another(way: str) -> None:
    limits = RequestLimits(attempt_timeout_s=1.5)  # the other one's answer has as long
    async with chat_server(way, FakeEngine(in_steps), FakeEngine(in_steps), limits=limits) as chats:
        first, second = chats.engines
        first.script = second.script = hang
        client = await chats.send(chat())
        await until(lambda: first.requests or second.requests)
        (second if first.requests else first).script = in_steps
        assert (await client.answer()).text == text_of(IDS)
        chats.taken.check(way, decided=False)
