"""HTTP/1.1 connections over real sockets: requests and answers as they should be, and clients that
leave, wait or do not read."""

import asyncio
import random
import sys
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import pytest
from support.polling import until
from support.servers.http1_server import (
    CHUNKED,
    CLOSE,
    LIMITS,
    TEXT,
    Rig,
    answer,
    bodies,
    echo,
    post,
    serving,
    stream,
)

from dynamo_router.base.account import current_account, set_account
from dynamo_router.transport.http1 import Client, ClientLeftError, HttpLimits, Receive, Scope, Send
from dynamo_router.transport.http1.connection import HttpConnection


@pytest.mark.parametrize(
    "sent, body",
    [
        (post(b"hello", "/a", CLOSE), b"POST /a? hello"),
        (post(b"", "/a%20b?c=%20&d", CLOSE), b"POST /a b?c=%20&d "),
        (post(b"", "http://x:1/a?b#c", CLOSE), b"POST /a?b "),
        (CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"POST /a? abcde"),
        (b"\r\n\r\n" + post(b"x", "/a", CLOSE), b"POST /a? x"),
        (post(b"old", version="1.0"), b"POST /a? old"),
    ],
)
async def test_requests(sent: bytes, body: bytes) -> None:
    async with serving() as rig:
        assert bodies(await rig.send(sent)) == [body]


async def test_many_after_and_before_each_other() -> None:
    """What is sent ahead is answered in order; a connection stays."""
    async with serving() as rig:
        ahead = b"".join(post(b"%d" % number) for number in range(3))
        assert bodies(await rig.send(ahead + post(b"3", "/a", CLOSE))) == [
            b"POST /a? %d" % number for number in range(4)
        ]
        reader, writer = await rig.open()
        for number in range(3):
            writer.write(post(b"%d" % number))
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"connection" not in head
            assert await reader.readexactly(10) == b"POST /a? %d" % number
        writer.close()


@pytest.mark.parametrize("version, chunked", [("1.1", True), ("1.0", False)])
async def test_a_stream_has_chunks_where_the_client_knows_them(version: str, chunked: bool) -> None:
    async with serving(stream) as rig:
        head, _, body = (await rig.send(post(b"", "/", CLOSE, version=version))).partition(
            b"\r\n\r\n"
        )
        assert (b"transfer-encoding: chunked" in head) == chunked
        parts = b"4\r\none,\r\n4\r\ntwo,\r\n5\r\nthree\r\n0\r\n\r\n"
        assert body == (parts if chunked else b"one,two,three")


async def test_requests_after_each_other_are_answered_by_one_task() -> None:
    """Nothing of the one before is left to the next; a task that was cancelled has none."""
    tasks: list[asyncio.Task[Any] | None] = []
    accounts: list[str] = []

    async def answers(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        task = asyncio.current_task()
        assert task is not None and client.answering is task
        tasks.append(task)
        accounts.append(current_account())
        set_account("somebody")
        await echo(scope, receive, send, client)
        if scope["path"] == "/cancelled":
            task.cancel()

    async def ask(path: str) -> None:
        writer.write(post(b"x", path))
        await reader.readuntil(b" x")
        await until(lambda: not rig.connections.tasks)

    async with serving(answers) as rig:
        reader, writer = await rig.open()
        for path in "/a", "/cancelled", "/b", "/c":
            await ask(path)
        writer.write(post(b"1") + post(b"2") + post(b"3", "/a", CLOSE))  # sent ahead
        assert bodies(await reader.read()) == [b"POST /a? %d" % n for n in (1, 2, 3)]
        writer.close()
        await until(lambda: all(task is None or task.done() for task in tasks))
    assert tasks[0] is tasks[1] is not tasks[2]
    assert tasks[2] is tasks[3] is tasks[4]
    assert accounts == [""] * 7


async def test_a_task_that_rests_ends_with_its_connection() -> None:
    begun: list[asyncio.Task[Any]] = []

    async def answers(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        assert client.answering is not None
        begun.append(client.answering)
        await echo(scope, receive, send, client)

    async with serving(answers) as rig:
        reader, writer = await rig.open()
        writer.write(post(b"x"))
        await reader.readuntil(b" x")
        await until(lambda: not rig.connections.tasks)
        assert not begun[0].done()
        writer.close()
        await until(begun[0].done)


async def test_head_has_no_body() -> None:
    async with serving() as rig:
        found = await rig.send(post(b"", "/", CLOSE).replace(b"POST", b"HEAD"))
        assert found.endswith(b"\r\n\r\n") and b"content-length: 8" in found


async def test_a_client_that_waits_is_told_to_go_on() -> None:
    async with serving() as rig:
        reader, writer = await rig.open()
        head, _, body = post(b"hello", "/a", CLOSE, "expect: 100-continue").partition(b"hello")
        writer.write(head)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert bodies(await reader.read()) == [b"POST /a? hello"]
        writer.close()


async def test_a_client_that_was_not_told_to_go_on_may_send_its_body_or_not() -> None:
    """Where the next request would begin is not known, so there is none."""

    async def refuses(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        await answer(send, b"no")

    async with serving(refuses) as rig:
        head = post(b"hello", "/a", "expect: 100-continue")[:-5]
        found = await rig.send(head)
        assert b"connection: close" in found and bodies(found) == [b"no"]
        reader, writer = await rig.open()
        writer.write(head + b"hello" + post(b"", "/b", CLOSE))
        assert bodies(await reader.read()) == [b"no", b"no"]
        writer.close()


async def test_http_1_0_knows_neither_100_nor_chunks() -> None:
    """Whoever passed chunks on as HTTP/1.0 may have seen another end of the body."""
    async with serving() as rig:
        reader, writer = await rig.open()
        writer.write(post(b"hello", "/a", "expect: 100-continue", version="1.0")[:-5])
        await until(lambda: rig.connections.tasks)
        writer.write(b"hello")
        assert bodies(await reader.read()) == [b"POST /a? hello"]
        writer.close()
        chunked = CHUNKED.replace(b"1.1", b"1.0").replace(b"close", b"keep-alive")
        found = await rig.send(chunked + b"1\r\nx\r\n0\r\n\r\n" + post(b"2"))
        assert b"connection: close" in found and bodies(found) == [b"POST /a? x"]


async def test_a_date() -> None:
    async with serving() as rig:
        for sent in (post(b"x", "/a", CLOSE), b"hello\r\n\r\n"):
            head = (await rig.send(sent)).lower().partition(b"\r\n\r\n")[0].decode()
            told = parsedate_to_datetime(head.partition("date: ")[2].split("\r\n")[0])
            assert abs((datetime.now(UTC) - told).total_seconds()) < 60


async def test_trailers_are_no_headers() -> None:
    seen: list[Any] = []

    async def note(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        while (await receive())["more_body"]:
            pass
        seen.extend(name for name, _ in scope["headers"])
        await answer(send, b"")

    async with serving(note) as rig:
        await rig.send(CHUNKED + b"1\r\nx\r\n0\r\nauthorization: me\r\n\r\n")
    assert seen == [b"host", b"connection", b"transfer-encoding"]


async def test_a_body_that_nobody_reads_is_not_taken() -> None:
    begun, read = asyncio.Event(), asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        begun.set()
        await read.wait()
        await echo(scope, receive, send, client)

    async with serving(waits) as rig:
        body = b"x" * (16 << 20)
        reader, writer = await rig.open()
        writer.write(post(body, "/a", CLOSE))
        await begun.wait()
        (connection,) = rig.connections.open
        assert writer.transport.get_write_buffer_size() > 1 << 20
        read.set()
        async with asyncio.timeout(60):
            assert bodies(await reader.read()) == [b"POST /a? " + body]
        writer.close()


@pytest.mark.parametrize("pieces", [1, 5])
async def test_the_body_of_the_request_in_turn_is_taken_before_it_is_asked_for(pieces: int) -> None:
    """If it is not too long; behind it, too, no more is taken than usual."""
    asked = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        await asked.wait()
        if (body := client.whole_body()) is None:
            await echo(scope, receive, send, client)
        else:
            await answer(send, body)

    async with serving(waits, replace(LIMITS, turn_bytes=1 << 20)) as rig:
        body, long = random.Random(1).randbytes(500_000), b"y" * (16 << 20)
        reader, writer = await rig.open()
        sent = post(body)
        size = len(sent) // pieces + 1
        for begin in range(0, len(sent), size):
            writer.write(sent[begin : begin + size])
            there = min(begin + size, len(sent)) - len(sent) + len(body)
            await until(partial(_is_there, rig, there))
        writer.write(post(long, "/a", CLOSE))
        await until(lambda: writer.transport.get_write_buffer_size() > 1 << 20)
        asked.set()
        async with asyncio.timeout(60):
            assert bodies(await reader.read()) == [body, b"POST /a? " + long]
        writer.close()


def _is_there(rig: Rig, size: int) -> bool:
    exchanges = [each._exchange for each in rig.connections.open]
    return sum(each.unread for each in exchanges if each is not None) >= size


@pytest.mark.parametrize("close", [True, False])
async def test_an_answer_before_the_body_is_read(close: bool) -> None:
    """A short rest is passed over, and the connection stays; of a long one the client, which is
    not cut off while it sends, reads the answer."""
    headers = [(b"connection", b"close")] if close else []

    async def refuses(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        await answer(send, b"no", *headers)

    async with serving(refuses) as rig:
        reader, writer = await rig.open()
        writer.write(post(b"x" * 3000)[:-2000])
        head = await reader.readuntil(b"\r\n\r\n")
        assert (b"connection: close" in head) == close
        assert await reader.readexactly(2) == b"no"
        writer.write(b"x" * 2000)
        if not close:
            writer.write(post(b"y"))
            assert (await reader.readuntil(b"no")).endswith(b"no")
            writer.write(post(b"x" * (1 << 20)))
        async with asyncio.timeout(60):
            assert (await reader.read()).endswith(b"" if close else b"no")
        writer.close()


@pytest.mark.parametrize(
    "headers",
    [
        [(b"a", b"b\r\nc: d")],
        [(b"a", b"b\nc: d")],
        [(b"a\r", b"b")],
        [(b"content-length", b"1")],
        [(b"content-length", b"5")],
        [(b"content-length", b"-1")],
    ],
)
async def test_an_answer_that_is_none_is_not_sent(headers: Any) -> None:
    async def wrong(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"xyz"})

    async with serving(wrong) as rig:
        reader, writer = await rig.open()
        writer.write(post(b""))
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readuntil(b"xyz")  # which no id has
        writer.close()


async def test_an_answer_that_is_broken_off_is_not_taken_for_whole() -> None:
    async def half(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        client.begin(200, [TEXT])
        client.write_part(b"half")
        raise ValueError("broken")

    async with serving(half) as rig:
        with pytest.raises(ConnectionResetError):
            found = await rig.send(post(b""))
            assert not found.endswith(b"0\r\n\r\n")
            raise ConnectionResetError  # it came as an end, not as a reset


async def for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "body, behind", [(b"", b""), (b"x" * 100_000, b""), (b"", post(b"1") * 2), (b"", b"POST /b H")]
)
async def test_a_client_that_leaves_ends_the_work(body: bytes, behind: bytes) -> None:
    """However much it sent, and whatever it sent ahead."""
    ended: list[str] = []
    begun = asyncio.Event()

    async def works(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        while (await receive())["more_body"]:
            pass
        begun.set()
        try:
            await client.unless_gone(for_ever())
        except ClientLeftError:
            ended.append(scope["path"])

    async with serving(works, HttpLimits()) as rig:
        _, writer = await rig.open()
        writer.write(post(body, "/left") + behind)
        await begun.wait()
        writer.close()
        await until(lambda: ended == ["/left"] and not rig.connections.open)


async def test_a_client_that_leaves_ends_the_work_behind_one_that_ends_late() -> None:
    """The request before it is answered, and its task has something to do yet."""
    released, begun = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def works(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        async def work() -> None:
            if scope["path"] == "/first":
                await echo(scope, receive, send, client)
                await released.wait()
            else:
                begun.set()
                await for_ever()

        try:
            await client.unless_gone(work())
        except ClientLeftError:
            ended.append(scope["path"])

    async with serving(works) as rig:
        _, writer = await rig.open()
        writer.write(post(b"1", "/first") + post(b"2", "/second"))
        await begun.wait()
        released.set()
        await until(lambda: len(rig.connections.tasks) == 1)
        writer.close()
        await until(lambda: ended == ["/second"])


async def test_a_task_that_could_not_begin_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its client waits for an answer that nobody makes."""

    async def fails(connection: HttpConnection) -> None:
        raise MemoryError

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    monkeypatch.setattr(HttpConnection, "_answer_each", fails)
    async with serving() as rig:
        with pytest.raises(ConnectionResetError):
            await rig.send(post(b"x"))
            raise ConnectionResetError
        await until(lambda: not rig.connections.open and not rig.connections.tasks)


async def test_a_cancellation_of_no_task_is_a_fault_like_others() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        if scope["path"] == "/late":
            await echo(scope, receive, send, client)
        raise asyncio.CancelledError

    async with serving(fails) as rig:
        found = await rig.send(post(b"x", "/early"))
        assert found.startswith(b"HTTP/1.1 500 ") and b"internal error" in found
        with pytest.raises(ConnectionResetError):
            await rig.send(post(b"x", "/late"))
            raise ConnectionResetError
        await until(lambda: not rig.connections.open)


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell what is behind bytes")
async def test_a_client_that_leaves_behind_what_is_not_read_ends_the_work() -> None:
    left, begun = asyncio.Event(), asyncio.Event()

    async def works(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        begun.set()
        try:
            await client.unless_gone(for_ever())
        except ClientLeftError:
            left.set()

    async with serving(works, HttpLimits(look_s=0.01)) as rig:
        for ahead in (12, 0):
            left.clear()
            begun.clear()
            _, writer = await rig.open()
            writer.write(post(b"" if ahead else b"x" * 100_000) + post(b"") * ahead)
            await begun.wait()
            writer.close()
            await left.wait()
            await until(lambda: not rig.connections.open)


async def test_what_waits_for_clients_that_leave_together_is_ended_and_not_resumed() -> None:
    """Beyond what ends in one turn of the loop, too: else all they did not read is made at once."""
    clients, resumed, left = [Client() for _ in range(100)], 0, 0

    async def work(client: Client) -> None:
        nonlocal resumed
        await client.drained()
        resumed += 1

    async def serve(client: Client) -> None:
        nonlocal left
        try:
            await client.unless_gone(work(client))
        except ClientLeftError:
            left += 1

    for client in clients:
        client.on_full()
    tasks = [asyncio.create_task(serve(client)) for client in clients]
    await asyncio.sleep(0)
    for client in clients:
        client.on_gone()
    await asyncio.gather(*tasks)
    assert (resumed, left) == (0, 100)
    assert all(client.reads for client in clients)


async def test_who_does_not_read_is_waited_for() -> None:
    sent = 0

    async def floods(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        nonlocal sent
        client.begin(200, [TEXT])
        for _ in range(1000):
            await client.drained()
            client.write_part(b"x" * 100_000)
            sent += 1
        await send({"type": "http.response.body", "body": b""})

    async with serving(floods) as rig:
        reader, writer = await rig.open()
        writer.write(post(b"", "/", CLOSE))
        await until(lambda: sent > 0)
        (connection,) = rig.connections.open
        await until(lambda: not connection.client.reads)
        assert sent < 500
        assert len(await reader.read()) > 100_000_000
        writer.close()


async def test_a_server_that_ends_lets_answers_end() -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        begun.set()
        await go.wait()
        await echo(scope, receive, send, client)

    async with serving(waits) as rig:
        idle, idle_writer = await rig.open()
        busy, busy_writer = await rig.open()
        busy_writer.write(post(b"x"))
        await begun.wait()
        await until(lambda: len(rig.connections.open) == 2)
        for connection in list(rig.connections.open):
            connection.shut_down()
        assert await idle.read() == b""
        go.set()
        head, _, body = (await busy.read()).partition(b"\r\n\r\n")
        assert b"connection: close" in head and body == b"POST /a? x"
        idle_writer.close()
        busy_writer.close()


H2C = ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQA")
OFFERS = [
    H2C,
    ("connection: Upgrade", "upgrade: websocket", "sec-websocket-key: dGhlIHNhbXBsZQ=="),
    ("connection: keep-alive, UPGRADE", "UPGRADE: TLS/1.0, HTTP/2.0"),
    ("upgrade: h2c", "connection: upgrade", "upgrade: websocket"),
    ("upgrade: h2c",),
    ("connection: upgrade",),
]


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("size", [1 << 20, 1])
async def test_an_upgrade_that_is_offered_is_passed_over(offer: tuple[str, ...], size: int) -> None:
    """The body of its request is read, however that is framed, and what was sent behind it."""
    head = "\r\n".join(
        ("POST /a HTTP/1.1", "host: x", "transfer-encoding: chunked", *offer, "", "")
    )
    sent = [
        post(b"hello", "/a", *offer),
        head.encode() + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nupgrade: h2c\r\n\r\n",
        post(b"", "/b?c", *offer),
        post(b"last", "/a", CLOSE, *offer),
    ]
    async with serving() as rig:
        reader, writer = await rig.open()
        for each in sent:
            for at in range(0, len(each), size):
                writer.write(each[at : at + size])
                await writer.drain()
        async with asyncio.timeout(60):
            found = await reader.read()
        writer.close()
        assert bodies(found) == [
            b"POST /a? hello", b"POST /a? abcde", b"POST /b?c ", b"POST /a? last"
        ]  # fmt: skip


async def test_who_offers_an_upgrade_may_wait_before_the_body_and_speak_http_1_0() -> None:
    async with serving() as rig:
        reader, writer = await rig.open()
        writer.write(
            post(b"", "/a", "expect: 100-continue", *H2C).replace(b"length: 0", b"length: 2")
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await reader.readuntil(b"hi")).endswith(b"\r\n\r\nPOST /a? hi")
        writer.close()
        assert bodies(await rig.send(post(b"old", "/a", *H2C, version="1.0"))) == [b"POST /a? old"]


async def test_no_application_sees_an_upgrade() -> None:
    seen: list[Any] = []

    async def note(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        seen.append(scope["headers"])
        await echo(scope, receive, send, client)

    async with serving(note) as rig:
        await rig.send(post(b"x", "/a", CLOSE, *H2C))
        assert b"upgrade" not in dict(seen[0]) and b"http2-settings" in dict(seen[0])


async def test_of_a_url_and_a_header_the_url_says_which_host_is_meant() -> None:
    seen: list[Any] = []

    async def note(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        seen.append(scope["headers"])
        await echo(scope, receive, send, client)

    async with serving(note) as rig:
        for url in ("http://[::1]:8080/a", "http://y/a?b", "http://u@y/a#b"):
            await rig.send(post(b"", url, CLOSE))
    assert [dict(headers)[b"host"] for headers in seen] == [b"[::1]:8080", b"y", b"u@y"]
    assert all([name for name, _ in headers].count(b"host") == 1 for headers in seen)


async def test_who_has_sent_what_was_not_read_yet_is_not_idle() -> None:
    """It is not ended to make room for another connection."""
    async with serving() as rig:
        reader, writer = await rig.open()
        await until(lambda: len(rig.connections.open) == 1)
        (connection,) = rig.connections.open
        assert not connection.busy
        rig.connections.turns.call(600.0, lambda: None)  # of this turn nothing is left
        connection.data_received(post(b"x"))
        assert connection.busy
        await reader.readuntil(b"POST /a? x")
        await until(lambda: not connection.busy)
        writer.close()
