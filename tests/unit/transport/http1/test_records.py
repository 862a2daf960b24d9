"""Every request whose first byte came has one record, with the status that its client got."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.polling import until
from support.servers.http1_server import (
    CHUNKED,
    CLOSE,
    LIMITS,
    Answering,
    Rig,
    answer,
    echo,
    post,
    serving,
    stream,
)

from dynamo_router.base.request_record import CLIENT_LEFT, LEFT, RequestRecord, current_record
from dynamo_router.transport.http1 import Client, HttpLimits, Receive, Scope, Send


class Ends:
    """Notes how each request ended."""

    def __init__(self) -> None:
        self.begun: list[RequestRecord] = []
        self.records: list[RequestRecord] = []

    def on_request(self, record: RequestRecord) -> None:
        self.begun.append(record)

    def on_end(self, record: RequestRecord) -> None:
        assert not any(record is each for each in self.records), "a request ends once"
        self.records.append(record)

    @property
    def statuses(self) -> Counter[int]:
        return Counter(record.status for record in self.records)


@asynccontextmanager
async def watched(
    answering: Answering = echo, limits: HttpLimits = LIMITS
) -> AsyncIterator[tuple[Rig, Ends]]:
    ends = Ends()
    async with serving(answering, limits, observer=ends) as rig:
        yield rig, ends
        await until(lambda: not rig.connections.tasks)


def statuses_in(answers: bytes) -> Counter[int]:
    return Counter(map(int, re.findall(rb"HTTP/1\.1 (\d{3})", answers)))


GOOD = post(b"x", "/a", CLOSE)
LONG = b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"y" * LIMITS.head_bytes)


@pytest.mark.parametrize(
    "sent",
    [
        GOOD,
        post(b"x") + GOOD,
        post(b"old", version="1.0"),
        b"no request\r\n\r\n",
        b"\x16\x03\x01 of TLS",
        post(b"x") + b"no request\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        LONG,
        post(b"x") * 20,
        CHUNKED + b"zz\r\n",
        CHUNKED + b"3\r\nabc\r\nzz\r\n",
        post(b"x") + CHUNKED + b"zz\r\n",
        post(b"x", "/a", CLOSE, "connection: upgrade", "upgrade: websocket"),
        GOOD + b"what is behind it",
        b"\r\n" + GOOD,
    ],
)
async def test_a_client_gets_as_many_answers_as_are_noted(sent: bytes) -> None:
    async with watched() as (rig, ends):
        found = statuses_in(await rig.send(sent))
        await until(lambda: not rig.connections.open)
    assert found and ends.statuses == found


KEPT = CHUNKED.replace(b"connection: close\r\n", b"")


@pytest.mark.parametrize("head", [CHUNKED, KEPT])
@pytest.mark.parametrize("rest", [b"zz\r\n", b"1\r\nx\r\n0\r\ncontent-length: 9\r\n\r\n"])
async def test_an_answer_to_the_beginning_of_what_is_no_request_gives_way(
    head: bytes, rest: bytes
) -> None:
    async def early(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        await answer(send, b"without a look at the body")

    async with watched(early) as (rig, ends):
        found = await rig.send(head + rest)
        await until(lambda: not rig.connections.open)
    assert statuses_in(found) == {400: 1} == ends.statuses


@pytest.mark.parametrize(
    "sent, count",
    [
        (b"", 0),
        (b"\r\n", 0),
        (b"G", 1),
        (b"POST /a HTTP/1.1\r\nhost: x\r\n", 1),
        (post(b"hello")[:-3], 1),
        (post(b"hello", "/a", "expect: 100-continue")[:-5], 1),
        (post(b"x") * 3, 3),
        (post(b"x") + b"GET /b", 2),
    ],
)
async def test_who_leaves_before_an_answer_is_noted(sent: bytes, count: int) -> None:
    async def waits(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with watched(waits) as (rig, ends):
        _, writer = await rig.open()
        writer.write(sent)
        await until(lambda: rig.connections.open)
        # The server has read what was sent once it has read the end behind it.
        writer.close()
        await until(lambda: not rig.connections.open)
    assert ends.statuses == ({LEFT: count} if count else {})
    assert {record.error for record in ends.records} <= {CLIENT_LEFT}


async def test_what_a_connection_that_is_ended_here_asked_for_was_not_left() -> None:
    async with watched() as (rig, ends):
        _, writer = await rig.open()
        writer.write(b"GET /b")
        await until(lambda: [each for each in rig.connections.open if each._reading])
        for each in rig.connections.open:
            each.abort()
        await until(lambda: ends.records)
        writer.close()
    assert [each.error for each in ends.records] == ["the connection was ended here"]


async def test_what_a_refused_head_asked_for_is_known() -> None:
    for head in (b"POST /a HTTP/1.1\r\n", b"POST /a HTTP/2.0\r\nhost: x\r\n"):
        async with watched() as (rig, ends):
            assert statuses_in(await rig.send(head + b"content-length: 0\r\n\r\n"))
        (record,) = ends.records
        assert (record.scope["method"], record.scope["path"]) == ("POST", "/a")


async def test_who_leaves_behind_the_head_of_an_answer_had_its_status() -> None:
    go = asyncio.Event()

    async def begins(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        client.begin(200, [])
        client.write_part(b"one")
        while (await receive())["type"] != "http.disconnect":
            pass
        client.write_part(b"two")
        go.set()

    async with watched(begins) as (rig, ends):
        reader, writer = await rig.open()
        writer.write(post(b"x"))
        assert await reader.readuntil(b"one")
        writer.close()
        await go.wait()
    assert ends.statuses == {200: 1}


async def test_what_is_answered_after_its_client_left_had_no_status() -> None:
    async def late(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await answer(send, b"too late")

    async with watched(late) as (rig, ends):
        _, writer = await rig.open()
        writer.write(post(b"x"))
        await until(lambda: ends.begun)
        writer.close()
        await until(lambda: ends.records)
    assert ends.statuses == {LEFT: 1}


async def test_a_body_that_does_not_come_is_noted_by_the_status_of_its_refusal() -> None:
    limits = LIMITS.__class__(silence_s=0.05, linger_s=0.05)
    for sent in (post(b"hello")[:-2], b"POST / HT", post(b"x") + post(b"hello")[:-2]):
        async with watched(limits=limits) as (rig, ends):
            found = statuses_in(await rig.send(sent))
            await until(lambda rig=rig: not rig.connections.open)  # type: ignore[misc]
        assert found[408] == 1 and ends.statuses == found


async def test_an_application_that_fails_is_noted() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        raise ZeroDivisionError

    async with watched(fails) as (rig, ends):
        assert (await rig.send(post(b"x"))).startswith(b"HTTP/1.1 500")
    (record,) = ends.records
    assert (record.status, record.error) == (500, "ZeroDivisionError")


async def test_the_record_is_that_of_the_task() -> None:
    seen: list[Any] = []

    async def notes(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        seen.append(current_record())
        await stream(scope, receive, send, client)

    async with watched(notes) as (rig, ends):
        await rig.send(post(b"x") + GOOD)
    assert seen == ends.records == ends.begun and seen[0] is not seen[1]
    assert all(record.scope["path"] == "/a" for record in seen)
