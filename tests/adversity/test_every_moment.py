"""A plain chat that is cut off at each of its moments leaves nothing, whoever cuts it off: its
client, its engine, its server or an abort. Both ways.

A moment is a call of one of our Python functions on the event loop, from the first byte of the
request to the end of its answer; ADVERSITY_PROFILE=long takes every one.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from os import environ
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakSet

import grpc
import pytest
from support.fake_engine import FakeEngine, chunk, complete
from support.frontend.chat_ways import WAYS, Answer, ChatServer, chat, chat_server, text_of
from support.polling import until

import dynamo_router
from dynamo_router.transport.http2.client_channel import ClientConnection

STRIDE = 1 if environ.get("ADVERSITY_PROFILE") == "long" else 7
ROOTS = tuple(str(Path(path).resolve()) for path in dynamo_router.__path__)


class Moment:
    """Does something at the n-th call of our functions on this thread, once."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.left, self._act = number, act

    def __enter__(self) -> "Moment":
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    @property
    def came(self) -> bool:
        return self.left <= 0

    def _on_event(self, frame: FrameType, event: str, arg: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or "/tests/" in name or not name.startswith(ROOTS):
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            self._act()


async def three(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    """It heeds aborts, and waits for those that are on their way."""
    for message in (chunk(request, 64), chunk(request, 65, 66), complete(request, 64, 65, 66)):
        await until(lambda: not acting or engine.aborted)
        if request.request_id in engine.aborted:
            await context.abort(grpc.StatusCode.CANCELLED, "aborted")
        yield message


WORDS = text_of([64, 65, 66])


def by_client(chats: ChatServer) -> None:
    """Its connection is lost."""
    for connection in list(chats.connections.open):
        connection._transport.abort()


def by_server(chats: ChatServer) -> None:
    """The server's listener is closed."""
    note(chats.openai.close())


def by_abort(chats: ChatServer) -> None:
    """It is aborted by its id."""
    dispatcher = chats.server.dispatcher
    for request in list(dispatcher.requests):
        note(dispatcher.abort(request.request_id))


def by_engine(chats: ChatServer) -> None:
    """The connection to its engine is lost."""
    for connection in engine_connections:
        if connection._transport is not None:
            connection._transport.abort()


def note(work: Coroutine[Any, Any, Any]) -> None:
    """Have it done beside."""
    task = asyncio.ensure_future(work)
    acting.add(task)
    task.add_done_callback(acting.discard)


acting: "set[asyncio.Task[Any]]" = set()
engine_connections: "WeakSet[ClientConnection]" = WeakSet()


@pytest.fixture(autouse=True)
def noted_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ClientConnection.connection_made

    def noted(self: ClientConnection, transport: asyncio.BaseTransport) -> None:
        engine_connections.add(self)
        made(self, transport)

    monkeypatch.setattr(ClientConnection, "connection_made", noted)


def check(found: Answer, way: str) -> None:
    """A client has what its engine said, or the begin of that; and is told if that is not all."""
    assert WORDS.startswith(found.text)
    if found.status == 200 and found.whole:
        assert found.error or (found.text, found.reason) == (WORDS, "length")
        assert found.error or found.usage is not None
    elif found.status == 200:
        assert found.reason is None or found.text == WORDS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", [by_client, by_server, by_abort, by_engine])
async def test_a_chat_that_is_cut_off_leaves_nothing(
    act: Callable[[ChatServer], None], way: str
) -> None:
    async with chat_server(way, engine := FakeEngine(three)) as chats:
        number, came, ends = 1, True, set()
        while came:
            await until(lambda: chats.server.monitor.any_ready)
            with Moment(number, partial(act, chats)) as moment:
                found = await chats.ask(chat())
            came = moment.came
            await until(lambda: not acting)
            engine.aborted.clear()
            await chats.settled()
            if act is by_server and came:
                await chats.openai.listen()
            check(found, way)
            ends.add((found.status, bool(found.text), found.whole, bool(found.error)))
            number += STRIDE
        assert len(ends) > 1, ends  # it was whole, and it was cut off
        assert number > 200
