"""Connections of callers: shared out of what may be open, and bounded over HTTP."""

import asyncio
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.polling import until

from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.services.connections import (
    LEAST,
    PER_WORKER,
    SPARE,
    HttpConnections,
    share_descriptors,
)


@given(st.integers(0, 70_000), st.integers(3, 500), st.integers(0, 1000))
def test_engines_come_first_and_what_is_short_is_said(
    allowed: int, in_use: int, workers: int
) -> None:
    limits = CallerLimits()
    plan = share_descriptors(limits, allowed=allowed, in_use=in_use, workers=workers)
    assert LEAST <= plan.grpc <= limits.max_connections
    assert LEAST <= plan.http <= limits.max_http_connections
    needed = in_use + PER_WORKER * workers + SPARE + plan.grpc + plan.http
    assert bool(plan.warning) == (allowed < in_use + PER_WORKER * workers + SPARE + 2 * LEAST)
    assert plan.warning or needed <= allowed
    assert not plan.warning or str(allowed) in plan.warning


def test_with_descriptors_enough_the_settings_hold() -> None:
    limits = CallerLimits(max_connections=100, max_http_connections=20)
    plan = share_descriptors(limits, allowed=65_536, in_use=60, workers=1000)
    assert (plan.grpc, plan.http, plan.warning) == (100, 20, "")


class Echo(asyncio.Protocol):
    """What serves a connection: says back what it hears."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Listener:
    """A server of bounded connections."""

    def __init__(self, most: int, idle_s: float) -> None:
        self.hits = LimitHits()
        self.connections = HttpConnections(most, idle_s, self.hits, young_s=0.0)
        self.serves: type[Echo] = Echo
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Listener":
        loop = asyncio.get_running_loop()

        def enter() -> asyncio.Protocol:
            entered = self.connections.enter("127.0.0.1", self.serves)
            assert not isinstance(entered, str)
            return entered

        self._server = await loop.create_server(enter, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await until(lambda: not len(self.connections))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opened = len(self.connections), self.hits.counts()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        await until(lambda: (len(self.connections), self.hits.counts()) != opened)
        return reader, writer


async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"x")
    return await asyncio.wait_for(reader.read(1), 60)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 60) == b""
    except ConnectionError:
        return True


@pytest.mark.usefixtures("leaves_nothing")
async def test_one_more_ends_the_one_that_was_silent_longest() -> None:
    async with Listener(3, 600.0) as listener:
        talks, silent, other = [await listener.connect() for _ in range(3)]
        assert await say(*talks) == b"x"
        newcomer = await listener.connect()
        assert await is_closed(silent[0]) and len(listener.connections) == 3
        for each in (talks, other, newcomer):
            assert await say(*each) == b"x"
        assert listener.hits.counts() == {"max_http_connections": 1}


@pytest.mark.usefixtures("leaves_nothing")
async def test_a_connection_that_says_nothing_ends() -> None:
    async with Listener(3, 0.05) as listener:
        reader, _ = await listener.connect()
        assert await is_closed(reader)
        assert listener.hits.counts() == {"connection_idle_s": 1}


class Answering(Echo):
    """Answers for ever."""

    busy = True


@pytest.mark.usefixtures("leaves_nothing")
async def test_one_that_is_being_answered_is_not_silent() -> None:
    """A long answer outlives the others: it ends when it is over, or does not stay idle."""
    async with Listener(2, 0.05) as listener:
        listener.serves = Answering
        long = await listener.connect()
        listener.serves = Echo
        reader, _ = await listener.connect()
        assert await is_closed(reader)
        assert await say(*long) == b"x"
        listener.connections.idle_s = 600.0
        silent, _ = await listener.connect()
        newcomer = await listener.connect()
        assert await is_closed(silent)
        assert await say(*long) == await say(*newcomer) == b"x"


class Held(asyncio.Protocol):
    """A connection that is being answered, or not."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy, self.answered_at, self.ended = busy, 0.0, False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


class Unconnected:
    """Connections without sockets."""

    def __init__(self, most: int, share: float, young_s: float = 0.0) -> None:
        self.hits = LimitHits()
        self.connections = HttpConnections(most, 600.0, self.hits, share, young_s)

    def enter(self, host: str, *, busy: bool = False) -> Held | str:
        """What serves it, once it is made; or why there is no room."""
        inner = Held(busy=busy)
        entered = self.connections.enter(host, lambda: inner)
        if isinstance(entered, str):
            return entered
        transport: Any = Mock()
        transport.abort.side_effect = partial(entered.connection_lost, None)
        transport.get_extra_info.return_value = (host, 1)
        entered.connection_made(transport)
        return inner


async def test_what_is_being_answered_is_not_ended_for_more_of_the_same_address() -> None:
    listener = Unconnected(64, 0.25)  # 16 of each address
    busy = [listener.enter("192.0.2.1", busy=True) for _ in range(16)]
    refused = listener.enter("192.0.2.1")
    assert refused == (
        "no capacity for the connection: max_connection_share: one address may have 16"
    )
    assert not any(isinstance(each, str) or each.ended for each in busy)
    assert isinstance(listener.enter("192.0.2.2"), Held)
    assert listener.hits.counts() == {"max_connection_share": 1}


async def test_newcomers_do_not_end_each_other_before_they_are_heard() -> None:
    listener = Unconnected(64, 0.25, young_s=600.0)
    young = [listener.enter("192.0.2.1") for _ in range(16)]
    assert isinstance(listener.enter("192.0.2.1"), str)
    assert not any(isinstance(each, str) or each.ended for each in young)


async def test_the_address_that_has_most_makes_room_for_others() -> None:
    """Also where all that it has is being answered, and others have been silent for longer."""
    listener = Unconnected(40, 0.75)  # 30 of each address
    first = listener.enter("192.0.2.3", busy=True)
    many = [listener.enter("192.0.2.1", busy=True) for _ in range(30)]
    others = [listener.enter("192.0.2.2", busy=True) for _ in range(9)]
    newcomer = listener.enter("192.0.2.4")
    assert isinstance(newcomer, Held) and isinstance(first, Held) and not first.ended
    assert [isinstance(each, Held) and each.ended for each in many].count(True) == 1
    assert not any(isinstance(each, Held) and each.ended for each in others)
    assert len(listener.connections) == 40
    refused = listener.enter("192.0.2.1")  # which has most still
    assert isinstance(refused, str) and "max_http_connections" in refused
