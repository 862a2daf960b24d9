"""A connection that is gone ends each of its calls, also where the end of one of them fails."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.polling import closed_after, until
from support.servers import http2_frames as raw
from support.servers.http2_client import head_of, listening, raw_client
from support.servers.http2_peer import peer

from dynamo_router.base.errors import StatusCode
from dynamo_router.transport.http2 import CallError, ClientCall, ClientChannel, Fault, ServerCall

CALLS = 3


def failing_first(end: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but the first call whose turn it is fails."""
    failed: list[Any] = []

    def flawed(call: Any, *words: Any) -> None:
        if not failed:
            failed.append(call)
            raise ZeroDivisionError("of one call")
        if call is not failed[0]:
            end(call, *words)

    return flawed


async def outcome_of(call: ClientCall) -> tuple[Fault | None, StatusCode] | None:
    """How it ended; None: it was cancelled."""
    try:
        async with asyncio.timeout(30):
            return [message async for message in call] and None
    except CallError as error:
        return error.outcome.fault, error.outcome.code
    except asyncio.CancelledError:
        return None


async def test_a_lost_connection_ends_the_other_calls_of_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientCall, "on_lost", failing_first(ClientCall.on_lost))
    async with peer() as (script, address), closed_after(ClientChannel(address)) as channel:
        calls = [channel.call("/a.B/C", b"") for _ in range(CALLS)]
        await until(lambda: script.connections and len(script.streams(0)) == CALLS)
        with capture_logs() as logs:
            script.connections[0].close()
            ends = [await outcome_of(call) for call in calls]
        await until(lambda: not channel._connections)
    assert sorted(ends, key=str) == [
        (Fault.BROKEN, StatusCode.UNAVAILABLE),
        (Fault.BROKEN, StatusCode.UNAVAILABLE),
        (Fault.OURS, StatusCode.INTERNAL),
    ]
    assert [line["log_level"] for line in logs] == ["error"]


async def test_a_channel_that_closes_ends_the_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientCall, "on_discarded", failing_first(ClientCall.on_discarded))
    async with peer() as (script, address):
        channel = ClientChannel(address)
        calls = [channel.call("/a.B/C", b"") for _ in range(CALLS)]
        await until(lambda: script.connections and len(script.streams(0)) == CALLS)
        with capture_logs() as logs:
            await channel.close()
        assert all(call.outcome is not None for call in calls)
    assert [line["log_level"] for line in logs] == ["error"]


async def test_a_client_that_is_gone_ends_all_its_calls_at_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[ServerCall] = []

    async def hang(call: ServerCall) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(call)

    monkeypatch.setattr(ServerCall, "on_end", failing_first(ServerCall.on_end))
    async with listening({"/a.B/hang": hang}) as (server, port):
        async with raw_client(port) as client:
            client.greet()
            for number in range(CALLS):
                client.send(raw.headers(2 * number + 1, head_of("/a.B/hang")))
            await until(lambda: server.calls_open == CALLS)
            with capture_logs() as logs:
                client._writer.close()
                await until(lambda: not server.calls_open and not len(server))
    assert len(ended) == CALLS
    assert [line["log_level"] for line in logs] == ["error"]


async def test_a_call_that_fails_by_a_fault_of_ours_says_whose_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where its end is delivered, and where a connection could not be made for one."""
    monkeypatch.setattr(ClientCall, "on_end", failing_first(ClientCall.on_end))
    async with peer() as (script, address), closed_after(ClientChannel(address)) as channel:
        script.on_data = lambda _, data: b"".join(
            raw.headers(frame.stream, ((b"grpc-status", b"0"),), end=True)
            for frame in raw.parse(data)
            if frame.kind == raw.HEADERS
        )
        assert await outcome_of(channel.call("/a.B/C", b"")) == (Fault.OURS, StatusCode.INTERNAL)

        def no_connection(*_: Any) -> None:
            raise ZeroDivisionError

        other = ClientChannel(address)
        monkeypatch.setattr(other, "_open", no_connection)
        async with closed_after(other):
            call = other.call("/a.B/C", b"")
            connecting = other._connecting
            assert connecting is not None
            assert await outcome_of(call) == (Fault.OURS, StatusCode.INTERNAL)
            with pytest.raises(ZeroDivisionError):
                await connecting
