"""Server-sent events, from what is put to the bytes of one answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.polling import closed_after, until

from dynamo_router.frontend.sse_writer import SseWriter
from dynamo_router.transport.http1 import Client


class Sent:
    """An answer as a connection gets it: the head once, and each part by itself."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, dict[bytes, bytes]]] = []
        self.parts: list[bytes] = []

    def begin(self, status: int, headers: Any, lines: bytes = b"") -> None:
        given = [line.partition(b": ")[::2] for line in lines.splitlines()]
        self.heads.append((status, {**dict(given), **dict(headers)}))

    def write(self, data: bytes, *, more: bool = True) -> None:
        self.parts.append(data)

    async def send(self, message: Any) -> None:
        assert message["type"] == "http.response.body" and not message.get("more_body")
        self.parts.append(message["body"])


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def client(sent: Sent) -> Client:
    made = Client()
    made.output = sent
    return made


@pytest.fixture
async def writer(sent: Sent, client: Client) -> AsyncIterator[SseWriter]:
    made = SseWriter(sent.send, client, {"x-request-id": "7"}, 15.0)
    yield made
    await made.close()


async def test_events_of_one_turn_go_out_together(writer: SseWriter, sent: Sent) -> None:
    writer.put(b"1")
    writer.put(b"2")
    assert writer.started and not sent.parts
    await until(lambda: bool(sent.parts))
    assert sent.parts == [b"data: 1\n\ndata: 2\n\n"]
    ((status, headers),) = sent.heads
    assert status == 200 and headers[b"x-request-id"] == b"7"
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"


async def test_the_last_event_goes_with_the_end(writer: SseWriter, sent: Sent) -> None:
    writer.put(b"1", last=True)
    await asyncio.sleep(0)
    await writer.end(b"[DONE]")
    assert sent.parts == [b"data: 1\n\ndata: [DONE]\n\n"] and len(sent.heads) == 1


async def test_nothing_is_begun_before_the_first_event(writer: SseWriter, sent: Sent) -> None:
    await asyncio.sleep(0)
    assert not writer.started and not sent.heads and not sent.parts


async def test_a_client_that_does_not_keep_up_is_waited_for(
    writer: SseWriter, client: Client, sent: Sent
) -> None:
    client.on_full()
    writing = asyncio.create_task(writer.write(b"1"))
    await asyncio.sleep(0)
    assert not writer.started
    client.on_drained()
    await writing
    await until(lambda: bool(sent.parts))
    assert sent.parts == [b"data: 1\n\n"]


async def test_a_silent_stream_gets_comments(client: Client, sent: Sent) -> None:
    async with closed_after(SseWriter(sent.send, client, {}, 0.01)):
        await until(lambda: len(sent.parts) > 1)
    assert set(sent.parts) == {b": keep-alive\n\n"}
