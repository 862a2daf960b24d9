"""Servers that others wrote, at the end of our channel: gRPC C++ and grpc-js, grpclib, Envoy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.servers.grpc_peers.envoy import envoy_before
from support.servers.grpc_peers.peers import grpclib_server
from support.servers.grpc_peers.program import PROGRAMS, program_server

from dynamo_router.transport.http2 import CallError, ClientCall, ClientChannel, Outcome


@pytest.fixture(params=[*PROGRAMS, "grpclib", "grpclib behind Envoy"])
async def channel(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ClientChannel]:
    """To a server of that kind."""
    async with AsyncExitStack() as stack:
        if request.param in PROGRAMS:
            command = await asyncio.to_thread(PROGRAMS[request.param])
            address = await stack.enter_async_context(program_server(command))
        else:
            address = await stack.enter_async_context(grpclib_server())
        if "Envoy" in request.param:
            address = await stack.enter_async_context(envoy_before(address, tmp_path))
        channel = ClientChannel(address)
        stack.push_async_callback(channel.close)
        yield channel


async def outcome(call: ClientCall) -> Outcome:
    """How a call ends that fails."""
    with pytest.raises(CallError) as failed:
        async for _ in call:
            pass
    return failed.value.outcome


async def test_messages_in_their_order(channel: ClientChannel) -> None:
    said = [message async for message in channel.call("/many", b"500")]
    assert said == [b"%d" % n for n in range(500, 0, -1)]
    assert [message async for message in channel.call("/many", b"0")] == []


async def test_many_calls_at_once(channel: ClientChannel) -> None:
    async def ask(n: int) -> None:
        assert [message async for message in channel.call("/echo", b"%d" % n)] == [b"%d" % n]

    # grpclib ends a connection of more than 100 streams, which Envoy opens before it knows.
    await asyncio.gather(*(ask(n) for n in range(90)))


async def test_large_messages_both_ways(channel: ClientChannel) -> None:
    asked = bytes(range(256)) * 12_000
    (said,) = [message async for message in channel.call("/echo", asked)]
    assert said == asked
    (said,) = [message async for message in channel.call("/size", b"9000000")]
    assert said == b"x" * 9_000_000


async def test_metadata_of_both_ends(channel: ClientChannel) -> None:
    call = channel.call("/echo", b"hello", metadata=(("x-one", "1"), ("x-two", "2 2")))
    assert [message async for message in call] == [b"hello"]
    assert {("x-one", "1"), ("x-two", "2 2")} <= set(call.initial_metadata)


async def test_a_status_with_its_words(channel: ClientChannel) -> None:
    words = "nicht da: é, 100 %"
    ended = await outcome(channel.call("/fail", words.encode()))
    assert (ended.code, ended.details) == (5, words)
    assert [message async for message in channel.call("/echo", b"x")] == [b"x"]


async def test_deadlines_and_calls_given_up(channel: ClientChannel) -> None:
    assert (await outcome(channel.call("/hang", b"", timeout=0.2))).code == 4
    for _ in range(5):
        call = channel.call("/many", b"3000")
        assert await anext(call) == b"3000"
        call.cancel()
    assert [message async for message in channel.call("/echo", b"x")] == [b"x"]
