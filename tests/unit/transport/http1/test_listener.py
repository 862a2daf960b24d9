"""A listener of HTTP: what runs when it ends."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from support.polling import until
from support.servers.http1_server import answer, bodies, post

from dynamo_router.base.errors import ConfigError
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

    def route_of(self, scope: Mapping[str, Any]) -> str:
        return ""


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


@pytest.mark.usefixtures("leaves_nothing")
async def test_several_processes_may_share_a_port_if_all_of_them_want_to() -> None:
    application: Any = Application()
    first, second, alone = (HttpListener(application) for _ in range(3))
    port = await first.start("127.0.0.1", 0, key="port", reuse_port=True)
    assert await second.start("127.0.0.1", port, key="port", reuse_port=True) == port
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
        await alone.start("127.0.0.1", port, key="http_port")
    assert caught.value.key == "http_port"
    for listener in (first, second, alone):
        await listener.close()


@pytest.mark.usefixtures("leaves_nothing")
async def test_if_one_address_cannot_be_had_none_is_listened_on() -> None:
    application: Any = Application()
    listener, other = HttpListener(application), HttpListener(application)
    taken = await other.start("127.0.0.1", 0, key="port")
    port = await listener.start("127.0.0.1", 0, key="http_port")
    with pytest.raises(ConfigError, match="cannot listen"):
        await listener.start("127.0.0.1", taken, key="admin_port")
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)
    await other.close()
