"""A body whose length says that it is too long is refused before it is sent."""

import asyncio

import pytest
from support.servers.http1_server import post

from dynamo_router.transport.http1 import (
    Application,
    HttpCall,
    HttpListener,
    answer_json,
    plain_error,
)


@pytest.mark.parametrize("more", [(), ("expect: 100-continue",)])
@pytest.mark.parametrize("size", [11, 1 << 40, (1 << 64) - 1])
async def test_a_length_that_is_too_much_is_refused_at_once(
    more: tuple[str, ...], size: int
) -> None:
    async def answers(call: HttpCall) -> None:
        await answer_json(call, len(call.body))

    refused: list[int] = []
    application = Application(
        {"POST /a": answers},
        plain_error,
        max_body_bytes=10,
        on_long_body=lambda: refused.append(1),
    )
    listener = HttpListener(application, plain_error)
    port = await listener.start("127.0.0.1", 0, key="port")
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = post(b"", "/a", *more).replace(b"content-length: 0", b"content-length: %d" % size)
        writer.write(head)  # and nothing behind it
        async with asyncio.timeout(60):
            found = await reader.read()
        writer.close()
    finally:
        await listener.close()
    assert found.startswith(b"HTTP/1.1 413") and b"longer than 10 bytes" in found
    assert refused == [1]


async def test_a_length_of_many_zeros_is_a_length() -> None:
    """Python reads no number of more than 4300 digits."""

    async def answers(call: HttpCall) -> None:
        await answer_json(call, len(call.body))

    application = Application({"POST /a": answers}, plain_error, max_body_bytes=10)
    listener = HttpListener(application, plain_error)
    port = await listener.start("127.0.0.1", 0, key="port")
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        length = b"content-length: %b4" % (b"0" * 5000)
        head = post(b"", "/a", "expect: 100-continue", "connection: close")
        writer.write(head.replace(b"content-length: 0", length))
        async with asyncio.timeout(60):
            first = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"abcd")
            found = await reader.read()
        writer.close()
    finally:
        await listener.close()
    assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert found.startswith(b"HTTP/1.1 200") and found.endswith(b"4")
