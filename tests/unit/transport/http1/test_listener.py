"""A listener of HTTP: what runs when it ends."""

import asyncio
from typing import Any

import pytest
from support.polling import until
from support.servers.http1_server import answer, bodies, post

from dynamo_router.transport.http1 import HttpListener, Receive, Scope, Send


class Application:
    """Answers when it may."""

    def __init__(self) -> None:
        self.go = asyncio.Semaphore(0)
        self.begun = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send, **more: Any) -> None:
        self.begun += 1
        await self.go.acquire()
        await answer(send, b"%d" % self.begun)


@pytest.mark.usefixtures("leaves_nothing")
async def test_what_was_sent_ahead_is_answered_before_it_ends() -> None:
    application: Any = Application()
    listener = HttpListener(application)
    port = await listener.start("127.0.0.1", 0, key="port")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(b"") * 3)
    await until(lambda: application.begun == 1)
    draining = asyncio.create_task(listener.drain(60))
    for number in range(1, 4):
        await until(lambda number=number: application.begun == number)  # type: ignore[misc]
        assert not draining.done()
        application.go.release()
    await draining
    assert bodies(await reader.read()) == [b"1", b"2", b"3"]
    writer.close()
    await listener.close()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.usefixtures("leaves_nothing")
async def test_what_does_not_end_is_ended() -> None:
    application: Any = Application()
    listener = HttpListener(application)
    port = await listener.start("127.0.0.1", 0, key="port")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(b"") * 3)
    await until(lambda: application.begun == 1)
    await listener.drain(0)
    await listener.close()
    with pytest.raises(ConnectionResetError):
        found = await reader.read()
        assert found == b""
        raise ConnectionResetError  # it came as an end
    assert application.begun == 1
    writer.close()
