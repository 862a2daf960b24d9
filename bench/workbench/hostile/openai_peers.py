"""The callers of the hostile benchmark that misbehave at the OpenAI door: see peers.py."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from ...load import TargetAccess
from .engines import TOKENS

Peer = Callable[[str, TargetAccess], Awaitable[None]]
ERRORS = (OSError, aiohttp.ClientError, asyncio.TimeoutError)
HERE = "127.0.0.2", 0
"""Where they come from: as on a network, from another address than the client that behaves."""
AT_ONCE = 8
BURST = 1000
CHOICES = 128
SLOW = 200
BIG_BYTES = 15 << 20
LONG_TEXT = "a word of many " * 200_000
MANY_IDS = 1 << 20
UNREAD_TOKENS = 20_000


def _body(**more: Any) -> bytes:
    asked = {"model": "mock", "prompt": [5] * 64, "max_tokens": TOKENS, "stream": True}
    return json.dumps({**asked, **more}).encode()


async def _flood(
    address: str,
    access: TargetAccess,
    body: bytes,
    *,
    path: str = "/v1/completions",
    at_once: int = AT_ONCE,
    **headers: str,
) -> None:
    """Clients that repeat one request, each over a connection of its own."""
    shown = {key.title(): value for key, value in access.metadata()}
    shown |= {"Content-Type": "application/json", **headers}
    connector = aiohttp.TCPConnector(limit=0, local_addr=HERE)
    session = aiohttp.ClientSession(f"http://{address}", headers=shown, connector=connector)

    async def ask() -> None:
        while True:
            try:
                async with session.post(path, data=body) as answer:
                    await answer.read()
            except ERRORS:
                await asyncio.sleep(0.01)

    async with session:
        await asyncio.gather(*(ask() for _ in range(at_once)))


def _head(access: TargetAccess, path: str, length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"{key}: {value}" for key, value in access.metadata()]
    return ("\r\n".join([*lines, f"Content-Length: {length}"]) + "\r\n\r\n").encode()


async def _hold(address: str, say: bytes, drip: bytes, *, reads: bool = True) -> None:
    """Connections that say something, and then next to nothing for as long as they are let."""
    host, _, port = address.rpartition(":")

    async def hold() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    host, int(port), limit=1024, local_addr=HERE
                )
                try:
                    if not reads:
                        writer.transport.pause_reading()  # type: ignore[attr-defined]
                    writer.write(say)
                    await writer.drain()
                    while not (writer.is_closing() or reader.at_eof()):
                        writer.write(drip)
                        await asyncio.sleep(0.5)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.1)

    await asyncio.gather(*(hold() for _ in range(SLOW)))


async def burst(address: str, access: TargetAccess) -> None:
    """A thousand clients that ask again as soon as they were answered."""
    await _flood(address, access, _body(), at_once=BURST)


async def choices(address: str, access: TargetAccess) -> None:
    """Requests for 128 answers each."""
    await _flood(address, access, _body(n=CHOICES))


async def slow_heads(address: str, access: TargetAccess) -> None:
    """Heads that never end."""
    await _hold(address, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-A: ", b"a")


async def slow_bodies(address: str, access: TargetAccess) -> None:
    """Bodies that come by one byte."""
    await _hold(address, _head(access, "/v1/completions", 1 << 20) + b'{"prompt": "', b"a")


async def unread(address: str, access: TargetAccess) -> None:
    """Streams that are asked for and not read."""
    body = _body(max_tokens=UNREAD_TOKENS, ignore_eos=True)
    await _hold(address, _head(access, "/v1/completions", len(body)) + body, b"", reads=False)


async def long_texts(address: str, access: TargetAccess) -> None:
    """Texts of 3 MB to be tokenized, and of clients that leave before they are."""
    body = json.dumps({"model": "mock", "prompt": LONG_TEXT}).encode()

    async def leave() -> None:
        host, _, port = address.rpartition(":")
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port), local_addr=HERE)
                writer.write(_head(access, "/tokenize", len(body)) + body)
                await writer.drain()
                await asyncio.sleep(0.2)
                writer.transport.abort()

    await asyncio.gather(_flood(address, access, body, path="/tokenize", at_once=4), leave())


async def big_bodies(address: str, access: TargetAccess) -> None:
    """Bodies of 15 MiB that are no request."""
    await _flood(address, access, b'{"prompt": "' + b"x" * BIG_BYTES)


async def many_ids(address: str, access: TargetAccess) -> None:
    """Prompts of a million ids, and as many ids to be made text."""
    body = _body(prompt=[5] * (MANY_IDS - 64))
    text = json.dumps({"model": "mock", "tokens": [5] * MANY_IDS}).encode()
    await asyncio.gather(
        _flood(address, access, body, at_once=2),
        _flood(address, access, text, path="/detokenize", at_once=2),
    )


async def missing(address: str, access: TargetAccess) -> None:
    """Routes that are not there, many in one piece."""
    host, _, port = address.rpartition(":")
    asked = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100

    async def ask() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=HERE)
                try:
                    writer.write(asked)
                    while await reader.read(1 << 16):
                        writer.write(asked)
                        await writer.drain()
                finally:
                    writer.transport.abort()

    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))


async def upgrades(address: str, access: TargetAccess) -> None:
    """Requests that offer to speak another protocol, as some clients' first ones do."""
    asked = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMA"}
    await _flood(address, access, _body(), at_once=50, **asked)


async def unknown_callers(address: str, access: TargetAccess) -> None:
    """Requests without a token."""
    await _flood(address, TargetAccess(), _body(), at_once=50)


OPENAI_PEERS: dict[str, Peer] = {
    f"openai-{peer.__name__.replace('_', '-')}": peer
    for peer in (
        burst,
        choices,
        slow_heads,
        slow_bodies,
        unread,
        long_texts,
        big_bodies,
        many_ids,
        missing,
        upgrades,
        unknown_callers,
    )
}
