"""Requests whose head comes whole: the kernel beside llhttp, which reads all others.

What it reads, llhttp reads in the same way; and it reads what usual clients send.
"""

import asyncio
from typing import Any

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.polling import until
from support.servers.http1_server import CLOSE, bodies, echo, post, serving

from dynamo_router.transport.http1._whole_request import AT_MOST_ONCE, read_whole_request
from dynamo_router.transport.http1.limits import HttpLimits

MOST_BYTES, MOST_HEADERS = 4096, 12
Whole = tuple[str, bytes, bytes, list[tuple[bytes, bytes]], bytes]


class Parsed:
    """What llhttp makes of bytes."""

    def __init__(self, data: bytes) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.messages = self.ended = 0
        self.keeps = self.upgrades = False
        self.parser: Any = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.messages += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.keeps = self.parser.should_keep_alive()
        self.upgrades = self.parser.should_upgrade()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.ended += 1

    @property
    def whole(self) -> Whole:
        path, _, query = self.url.partition(b"?")
        return self.parser.get_method().decode(), path, query, self.headers, self.body


def read(data: bytes) -> Whole | None:
    """Of one that is all there."""
    found = read_whole_request(data, MOST_BYTES, MOST_HEADERS)
    return None if found is None or found[5] else found[:5]


def check(data: bytes) -> None:
    """What is read is what llhttp reads, and is all that an answer depends on."""
    found = read_whole_request(data, MOST_BYTES, MOST_HEADERS)
    if found is None:
        return
    missing = b"\xff" * min(found[5], 1 << 16)
    if len(missing) < found[5]:
        return
    data += missing  # whatever comes
    whole = (*found[:4], found[4] + missing)
    parsed = Parsed(data)  # no error
    assert (parsed.messages, parsed.ended) == (1, 1)
    assert parsed.whole == whole
    assert parsed.keeps and not parsed.upgrades
    assert parsed.parser.get_http_version() == "1.1"
    names = [name for name, _ in whole[3]]
    assert names.count(b"host") == 1 and len(names) <= MOST_HEADERS
    assert all(names.count(name) <= 1 for name in AT_MOST_ONCE)
    assert not {b"transfer-encoding", b"expect", b"upgrade"} & set(names)
    assert len(data) - len(whole[4]) <= MOST_BYTES


BODY = b'{"messages": []}'
USUAL = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: x/1 (y; z)\r\n"
    b"Content-Type: application/json\r\nContent-Length: 16\r\n\r\n" + BODY
)


def test_usual_requests_are_read() -> None:
    assert read(USUAL) == (
        "POST",
        b"/v1/chat/completions",
        b"",
        [
            (b"host", b"127.0.0.1:8000"),
            (b"user-agent", b"x/1 (y; z)"),
            (b"content-type", b"application/json"),
            (b"content-length", b"16"),
        ],
        BODY,
    )
    kept = USUAL.replace(b"Host", b"Connection: keep-alive\r\nHost")
    assert (found := read(kept)) is not None and (b"connection", b"keep-alive") in found[3]
    whole = read(b"GET /pools?a=b&c=d HTTP/1.1\r\nhost: me\r\n\r\n")
    assert whole == ("GET", b"/pools", b"a=b&c=d", [(b"host", b"me")], b"")
    for data in (USUAL, kept):
        check(data)


@pytest.mark.parametrize(
    "old, new",
    [
        (b"POST", b"PUT"),
        (b"POST /", b"POST http://me/"),
        (b"/v1/chat", b"/v1%2fchat"),
        (b"/v1/chat", b"/v1/chat#"),
        (b" HTTP/1.1", b" HTTP/1.0"),
        (b"\r\nHost", b"\nHost"),
        (b"Host: 127.0.0.1:8000\r\n", b""),
        (b"User-Agent", b"Host"),
        (b"User-Agent: ", b"User-Agent:"),
        (b"User-Agent: ", b"User-Agent:  "),
        (b"User-Agent: ", b"User-Agent:\t"),
        (b"User-Agent: ", b"User-Agent : "),
        (b"User-Agent: x/1 (y; z)", b"User-Agent: x "),
        (b"User-Agent: x/1 (y; z)", b"User-Agent: "),
        (b"User-Agent: x/1", b"User-Agent: \xff"),
        (b"User-Agent: x/1", b"User-Agent: \x00"),
        (b"User-Agent: x/1", b"User-Agent: a\r\n b"),
        (b"User-Agent: x/1 (y; z)", b"Connection: close"),
        (b"User-Agent: x/1 (y; z)", b"Connection: keep-alive, upgrade"),
        (b"User-Agent: x/1 (y; z)", b"Transfer-Encoding: chunked"),
        (b"User-Agent: x/1 (y; z)", b"Expect: 100-continue"),
        (b"User-Agent: x/1 (y; z)", b"Upgrade: h2c"),
        (b"User-Agent: x/1 (y; z)", b"Content-Length: 16"),
        (b"User-Agent: x/1 (y; z)", b"\r\n".join(b"a: %d" % n for n in range(MOST_HEADERS))),
        (b"User-Agent: x/1 (y; z)", b"a: " + MOST_BYTES * b"b"),
        (b"User-Agent: x/1 (y; z)", b"Authorization: a\r\nauthorization: a"),
        (b"User-Agent: x/1 (y; z)", b"X-Api-Key: a\r\nx-a: b\r\nx-api-key: b"),
        (b"User-Agent: x/1 (y; z)", b"Content-Encoding: gzip\r\nCONTENT-ENCODING: gzip"),
        (b"User-Agent", 65 * b"a"),
        (b"Length: 16", b"Length: 15"),
        (b"Length: 16", b"Length: 17"),
        (b"Length: 16", b"Length: +16"),
        (b"Length: 16", b"Length: 16,16"),
        (b"Length: 16", b"Length: " + 10 * b"1"),
    ],
)
def test_what_is_not_usual_is_left_to_the_parser(old: bytes, new: bytes) -> None:
    changed = USUAL.replace(old, new, 1)
    assert changed != USUAL and read(changed) is None


def test_parts_of_a_head_and_more_than_one_request_are_left_to_the_parser() -> None:
    whole, head = read(USUAL), len(USUAL) - len(BODY)
    assert whole is not None
    for size in range(len(USUAL)):
        found = read_whole_request(USUAL[:size], MOST_BYTES, MOST_HEADERS)
        if size < head:
            assert found is None
        else:
            assert found == (*whole[:4], USUAL[head:size], len(USUAL) - size)
    assert read(USUAL + USUAL) is None and read(b"\r\n" + USUAL) is None


PIECES = st.sampled_from(
    [
        b"POST",
        b"GET",
        b" ",
        b"/a",
        b"?b=c",
        b"%20",
        b"#",
        b" HTTP/1.1",
        b" HTTP/1.0",
        b"\r\n",
        b"\n",
        b"\r",
        b"Host: a",
        b"host: b",
        b"Content-Length: 3",
        b"content-length: 0",
        b"Content-Length: 03",
        b"Connection: keep-alive",
        b"Connection: close",
        b"Transfer-Encoding: chunked",
        b"X-A: b c",
        b"x-a:b",
        b": ",
        b"abc",
        b"\r\n\r\n",
        b"\x00",
        b"\xff",
    ]
)
LINES = st.lists(
    st.sampled_from(
        [
            b"Content-Length: 3",
            b"Content-Length: 003",
            b"content-length: 2",
            b"Connection: keep-alive",
            b"CONNECTION: Keep-Alive",
            b"Keep-Alive: timeout=3",
            b"X_a-9: !#$%&'()*+,-./:;<=>?@[]^_`{|}~ b",
            b"Accept: */*",
            b"Authorization: Bearer a",
            b"X-API-Key: a",
            b"content-encoding: gzip",
            b"Te: trailers",
            b"Trailer: x",
            b"Date: c",
        ]
    ),
    max_size=5,
)


@given(st.lists(PIECES, max_size=16).map(b"".join))
@example(USUAL)
def test_any_bytes_are_read_as_the_parser_reads_them(data: bytes) -> None:
    check(data)


@given(
    st.sampled_from([b"POST", b"GET"]),
    st.binary(max_size=6),
    LINES,
    st.sampled_from([b"", b"abc", b"ab"]),
    st.integers(0, 400),
    st.none() | st.integers(0, 255),
)
def test_requests_with_a_byte_changed_are_read_as_the_parser_reads_them(
    method: bytes, path: bytes, lines: list[bytes], body: bytes, at: int, byte: int | None
) -> None:
    head = b"\r\n".join((method + b" /" + path + b" HTTP/1.1", b"Host: me", *lines))
    data = bytearray(head + b"\r\n\r\n" + body)
    if byte is not None:
        data[at % len(data)] = byte
    check(bytes(data))


async def test_both_ways_on_one_connection() -> None:
    """Whole requests and those that come in parts of a head or a body, one after the other."""
    async with serving(echo) as rig:
        reader, writer = await rig.open()
        for number in range(9):
            sent = post(b"%d" % number, "/a")
            if part := (0, 30, len(sent) - 1)[number % 3]:
                writer.write(sent[:part])
                await until(lambda: any(each._reading for each in rig.connections.open))
            writer.write(sent[part:])
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(10) == b"POST /a? %d" % number
        writer.write(post(b"x", "/b", CLOSE))
        assert bodies(await reader.read()) == [b"POST /b? x"]
        writer.close()


@pytest.mark.parametrize("size", [1, 5, 40])
async def test_what_comes_behind_a_body_that_came_in_parts_is_the_next_request(size: int) -> None:
    """However the bytes are cut: a body, the request behind it, and one of another kind."""
    sent = post(b"a" * 30, "/a") + post(b"b", "/b") + post(b"c", "/c", CLOSE)
    head = sent.index(b"\r\n\r\n") + 4
    async with serving(echo) as rig:
        reader, writer = await rig.open()
        writer.write(sent[:head])
        await until(lambda: any(each._missing == 30 for each in rig.connections.open))
        for at in range(head, len(sent), size):
            writer.write(sent[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
        found = bodies(await reader.read())
        assert found == [b"POST /a? " + b"a" * 30, b"POST /b? b", b"POST /c? c"]
        writer.close()


async def test_a_body_whose_rest_does_not_come_is_waited_for_as_long_as_any() -> None:
    async with serving(echo, HttpLimits(silence_s=0.2)) as rig:
        reader, writer = await rig.open()
        writer.write(post(b"abc", "/a")[:-1])
        assert b"408" in (await reader.read()).split(b"\r\n")[0]
        writer.close()


async def test_a_client_that_leaves_in_the_middle_of_a_body_leaves_nothing() -> None:
    async with serving(echo) as rig:
        _, writer = await rig.open()
        writer.write(post(b"abc", "/a")[:-1])
        await until(lambda: any(each._missing for each in rig.connections.open))
        writer.close()
        await until(lambda: not rig.connections.open and not rig.connections.tasks)
