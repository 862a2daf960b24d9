"""What is no request, too much or too slow, over real sockets: it is told why, and ends."""

import asyncio
import json

import pytest
from support.polling import until
from support.servers.http1_server import CHUNKED, CLOSE, answer, bodies, post, serving

from dynamo_router.frontend.openai import error_answer
from dynamo_router.transport.http1 import Client, HttpLimits, Receive, Scope, Send

ENDLESS = b"x" * 5000
REFUSED = [
    (b"hello\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00", 400),  # a client of TLS
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\nhello", 405),
    (b"CONNECT /a HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi", 405),
    (b"GET http:///a HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    (b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", 505),
    (b"GET / HTTP/1.2\r\nhost: x\r\n\r\n", 505),
    (b"GET / HTTP/3\r\nhost: x\r\n\r\n", 505),
    (b"GET / HTTP/0.9\r\nhost: x\r\n\r\n", 505),
    (b"GET /\r\n\r\n", 505),
    (b"GET / HTTX/1.1\r\nhost: x\r\n\r\n", 400),
    (b"POST /a HTTP/1.1\r\nhost: x\r\nno header\r\n\r\n", 400),
    (b"POST /a HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx", 400),
    (b"POST /a HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /a HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
    (b"GET /a HTTP/1.1\r\na: b\r\n\r\n", 400),
    (b"GET /a HTTP/1.1\r\nhost: x\r\nHost: y\r\n\r\n", 400),
    (b"GET /a HTTP/1.1\r\nhost: x\r\nAuthorization: a\r\nauthorization: b\r\n\r\n", 400),
    (b"GET /a HTTP/1.1\r\nhost: x\r\nx-api-key: a\r\nx-api-key: a\r\n\r\n", 400),
    (b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\nContent-Encoding:\r\n\r\n", 400),
    (b"GET /" + ENDLESS, 431),
    (b"GET / HTTP/1.1\r\nhost: " + ENDLESS, 431),
    (b"GET / HTTP/1.1\r\n" + ENDLESS, 431),
    (b"GET / HTTP/1.1\r\nhost: x\r\na: " + ENDLESS + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 11 + b"\r\n", 431),
    (b"\r\n" * 3000, 431),
    (CHUNKED + b"zz\r\n", 400),
    (CHUNKED + b"1;" + ENDLESS * 120, 431),  # more than is read at once
    (CHUNKED + b"1\r\nx\r\n0\r\ntrailer: " + ENDLESS * 120, 431),
]


@pytest.mark.parametrize("sent, status", REFUSED)
@pytest.mark.parametrize("size", [1 << 20, 1000])
async def test_what_is_no_request_is_told_why(sent: bytes, status: int, size: int) -> None:
    """However it comes; and the others are served."""
    async with serving() as rig:
        reader, writer = await rig.open()
        for at in range(0, len(sent), size):
            writer.write(sent[at : at + size])
            await writer.drain()
        async with asyncio.timeout(60):
            found = await reader.read()
        writer.close()
        head, _, body = found.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), found
        assert json.loads(body)["error"]
        assert bodies(await rig.send(post(b"x", "/a", CLOSE))) == [b"POST /a? x"]
        await until(lambda: not rig.connections.open)


async def test_what_came_twice_is_named() -> None:
    twice = b"GET /a HTTP/1.1\r\nhost: x\r\nauthorization: a\r\nauthorization: a\r\n\r\n"
    async with serving() as rig:
        assert b"authorization once at most" in await rig.send(twice)
        apart = b"GET /a HTTP/1.1\r\nhost: x\r\nx-a: 1\r\nx-a: 2\r\nauthorization: a\r\n\r\n"
        assert b" 200 " in await rig.send(
            apart.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        )


async def test_a_refusal_has_the_form_of_its_server() -> None:
    async with serving(form=error_answer) as rig:
        head, _, body = (await rig.send(b"hello\r\n\r\n")).partition(b"\r\n\r\n")
        told = json.loads(body)["error"]
        assert b" 400 " in head and told["type"] == "invalid_request_error"
        assert "no HTTP/1.1 request" in told["message"] and told["code"] is None


async def test_what_was_asked_before_is_answered_before_a_refusal() -> None:
    async with serving() as rig:
        found = bodies(await rig.send(post(b"1") + post(b"2") + b"hello\r\n\r\n"))
        assert found[:2] == [b"POST /a? 1", b"POST /a? 2"]
        assert b"no HTTP/1.1 request" in found[2]


async def test_no_more_than_a_few_requests_wait() -> None:
    async with serving() as rig:
        found = bodies(await rig.send(post(b"x") * 9))
        assert found[:4] == [b"POST /a? x"] * 4 and b"sent ahead" in found[4]
        assert len(found) == 5


@pytest.mark.parametrize(
    "sent", [b"POST /a HTTP/1.1\r\nhost: x\r\n", post(b"hello")[:-1], CHUNKED + b"5\r\nhel"]
)
async def test_a_request_that_does_not_come_is_given_up(sent: bytes) -> None:
    """Also one that goes on byte by byte."""
    async with serving(limits=HttpLimits(request_s=0.1, least_bytes_per_s=1e6)) as rig:
        found = await rig.send(sent)
        assert found.startswith(b"HTTP/1.1 408 "), found
        reader, writer = await rig.open()
        writer.write(sent)
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"a" if b"5" in sent else b"a: b\r\n")
            await asyncio.wait([reading], timeout=0.02)
        assert b" 408 " in await reading or b" 400 " in await reading
        writer.close()


async def test_a_request_that_comes_no_further_is_given_up() -> None:
    """However much of it came, and long before it has had the time for that much."""
    limits = HttpLimits(request_s=1000.0, silence_s=0.1)
    async with serving(limits=limits) as rig:
        hit: list[None] = []
        rig.connections.on_slow = lambda: hit.append(None)
        found = await rig.send(post(b"x" * 100_000)[:-1])
        assert found.startswith(b"HTTP/1.1 408 ") and len(hit) == 1
        assert found.count(b"HTTP/1.1") == 1


async def test_a_request_has_one_answer() -> None:
    """Also if its body breaks off, or does not come, behind it: what came after it would be taken
    for the answer to the next request."""

    async def refuses(scope: Scope, receive: Receive, send: Send, client: Client) -> None:
        await answer(send, b"no")

    async with serving(refuses, HttpLimits(request_s=0.1, least_bytes_per_s=1e6)) as rig:
        for rest in (b"zz\r\n", b""):
            reader, writer = await rig.open()
            writer.write(CHUNKED.replace(b"close", b"keep-alive"))
            found = await reader.readuntil(b"no")
            writer.write(rest)
            async with asyncio.timeout(60):
                assert bodies(found + await reader.read()) == [b"no"]
            writer.close()
