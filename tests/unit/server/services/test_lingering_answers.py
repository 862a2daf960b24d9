"""Calls that were answered at once, and whose clients do not read, count against limits."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.polling import until
from support.servers import http2_frames as raw
from support.servers.http2_client import RawClient, echo, head_of, listening, raw_client

from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.server.access import AccessError, GrpcGuard
from dynamo_router.server.call_limits import CallLimits
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.services.checked_calls import CheckedCalls
from dynamo_router.transport.http2 import Http2Server

pytestmark = pytest.mark.usefixtures("leaves_nothing")
PATH = "/a.B/echo"


def shout(message: bytes, metadata: Sequence[tuple[str, str | bytes]]) -> bytes:
    return message.upper()


def call_of(stream: int) -> bytes:
    return raw.headers(stream, head_of(PATH)) + raw.data(stream, raw.message(b"words"), end=True)


@asynccontextmanager
async def unread() -> AsyncIterator[tuple[LimitHits, CallLimits, Http2Server, RawClient]]:
    """A server with room for two calls, and a client that reads two bytes of an answer."""
    hits = LimitHits()
    calls = CallLimits(CallerLimits(max_questions=2, max_share_per_caller=1.0), hits)
    guard = cast(GrpcGuard, SimpleNamespace(admit=lambda path, call: None))
    at_once: dict[str, Any] = {PATH: CheckedCalls(guard, calls).serving_at_once(PATH, shout)}
    async with (
        listening({PATH: echo}, None, at_once) as (server, port),
        raw_client(port) as client,
    ):
        client.greet((raw.INITIAL_WINDOW_SIZE, 2))
        yield hits, calls, server, client


async def test_an_answer_that_waits_for_its_client_takes_a_place_until_it_has_left() -> None:
    async with unread() as (hits, calls, server, client):
        for stream in (1, 3):
            client.send(call_of(stream))
            await until(lambda stream=stream: calls.questions.used == (stream + 1) // 2)
        client.send(call_of(5))
        await client.until(raw.HEADERS, stream=5)
        assert client.status(5)[0] == b"8"
        assert hits["max_questions"] == 1
        client.send(raw.window_update(1, 100))
        await until(lambda: calls.questions.used == 1)
        client.send(raw.frame(raw.RST_STREAM, 3, (8).to_bytes(4, "big")))
        await until(lambda: calls.questions.used == 0)
        while client.kinds(1).count(raw.HEADERS) < 2:  # its trailers
            await client.read()
        await until(lambda: not server.calls_open)


async def test_of_answers_of_one_turn_no_more_wait_than_find_room() -> None:
    async with unread() as (hits, calls, server, client):
        client.send(b"".join(map(call_of, (1, 3, 5, 7))))
        await until(lambda: calls.questions.used == 2 == server.calls_open)
        assert hits["max_questions"] >= 1


@pytest.mark.parametrize("refused", [False, True])
async def test_a_call_is_judged_once_however_long_its_end_takes_to_leave(refused: bool) -> None:
    judged: list[str] = []

    def admit(path: str, call: object) -> None:
        judged.append(path)
        if refused:
            raise AccessError("nobody knows it", reason="token", authenticated=False)

    async def finish() -> None:
        assert calls.questions.used == 1

    calls = CallLimits(CallerLimits(), LimitHits())
    checked = CheckedCalls(cast(GrpcGuard, SimpleNamespace(admit=admit)), calls)
    answer, wait = checked.serving_at_once(PATH, shout)
    call = cast(
        Any,
        SimpleNamespace(
            payer="",
            ended=False,
            peer=lambda: "ipv4:10.0.0.1:7",
            invocation_metadata=lambda: (),
            answer=lambda message: None,
            end=lambda code, text: None,
            refuse=lambda code, text: None,
            finish=finish,
        ),
    )
    assert answer(call, b"words")
    await wait(call)
    assert judged == [PATH]
    assert calls.questions.used == 0
