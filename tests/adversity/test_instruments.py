"""What the adversity runs are made of: that the faults happen, and that a wrong count is seen."""

import asyncio
from collections import Counter

import pytest
from support.adversity.fault_proxy import FaultProxy
from support.adversity.ledger import NOT_COUNTED, Ledger, contradictions
from support.adversity.nats_messages import MessageFaults
from support.adversity.schedule import (
    BOTHERSOME,
    LAST,
    LOSING,
    LOSING_A_PROCESS,
    OF_CLIENTS,
    OF_NATS,
    schedule_of,
    steps_of,
    to_text,
)
from support.adversity.zmq_messages import GREETING_BYTES, ZmqMessageFilter
from support.polling import until


def test_a_schedule_is_its_seeds_and_can_be_written_down() -> None:
    steps = schedule_of(7, 40)
    assert schedule_of(7, 40) == steps != schedule_of(8, 40)
    assert schedule_of(7, 10) == steps[:10]
    assert steps_of(to_text(steps)) == steps


def test_schedules_have_every_fault_and_leave_a_worker_alone() -> None:
    seen = set()
    for step in schedule_of(1, 100):
        assert len(step.faulty_engines) <= 2
        losing = [f for f in step.faults if f.name in (*LOSING, *LOSING_A_PROCESS)]
        assert len(losing) <= 1 and bool(losing) == step.loses_streams
        assert all(f.engine == LAST for f in losing if f.name in LOSING_A_PROCESS)
        seen |= {fault.name for fault in step.faults}
    assert seen == {*LOSING, *LOSING_A_PROCESS, *BOTHERSOME, *OF_NATS, *OF_CLIENTS}


OK, LEFT = frozenset(("ok",)), frozenset(("ok", "cancelled", NOT_COUNTED))


@pytest.mark.parametrize(
    ("claims", "counted", "fits"),
    [
        ([OK, OK], {"ok": 2}, True),
        ([OK, OK], {"ok": 1}, False),  # one was not counted
        ([OK, OK], {"ok": 3}, False),  # one was counted twice
        ([OK, OK], {"ok": 1, "cancelled": 1}, False),
        ([OK, LEFT], {"ok": 1}, True),
        ([OK, LEFT], {"ok": 2}, True),
        ([OK, LEFT], {"ok": 1, "cancelled": 1}, True),
        ([OK, LEFT], {"ok": 2, "cancelled": 1}, False),
        ([OK, LEFT], {"cancelled": 1}, False),
        ([OK], {"ok": 1, "internal": 1}, False),  # out of nothing
    ],
)
def test_counts_that_cannot_be_are_seen(
    claims: list[frozenset[str]], counted: dict[str, int], fits: bool
) -> None:
    assert (contradictions(claims, Counter(counted)) == []) is fits


def test_errors_of_the_routers_own_are_told_from_those_of_engines() -> None:
    ledger = Ledger()
    ledger.open("pinned", "p").code = ledger.open("stream", "s").code = "internal"
    assert ledger.own_errors(Counter(internal=1)) == {"internal": 1}
    ledger.entries[0].excused = True
    assert not ledger.own_errors(Counter(internal=1, ok=5))
    assert ledger.own_errors(Counter(internal=2, unknown=1)) == {"internal": 1, "unknown": 1}


def stream(*numbers: int) -> bytes:
    messages = [b"MSG a.kv-events 1 2\r\n%02d\r\n" % number for number in numbers]
    return b"INFO {}\r\n" + b"".join(messages) + b"MSG other 1 4\r\na\r\nb\r\nPING\r\n"


@pytest.mark.parametrize("portion", [1, 7, 10_000])
def test_messages_are_lost_doubled_and_swapped_and_the_rest_passes(portion: int) -> None:
    def through(count: int, **shares: float) -> bytes:
        faults = MessageFaults(b".kv-events")
        faults.set(1, **shares)
        passes, data = faults.filter(), stream(*range(count))
        return b"".join(passes(data[n : n + portion]) for n in range(0, len(data), portion))

    assert through(20) == stream(*range(20))
    assert through(20, loss=1.0) == stream()
    assert through(3, twice=1.0) == stream(0, 0, 1, 1, 2, 2)
    swapped = through(4, late=1.0)
    assert swapped == stream(1, 0, 3, 2)
    some = through(20, loss=0.3)
    assert stream() != some != stream(*range(20)) and some == through(20, loss=0.3)


def frames(*parts: bytes) -> bytes:
    """A message of ZMTP: its last frame is long, the others are short."""
    *some, last = parts
    first = b"".join(bytes([1, len(part)]) + part for part in some)
    return first + b"\x02" + len(last).to_bytes(8, "big") + last


@pytest.mark.parametrize("portion", [1, 7, 10_000])
def test_so_it_is_with_messages_of_zmq(portion: int) -> None:
    hello = bytes(GREETING_BYTES) + b"\x04\x05ready"

    def messages(*numbers: int) -> bytes:
        return b"".join(frames(b"topic", b"%d" % n, bytes(300)) for n in numbers)

    def through(**shares: float) -> bytes:
        faults = MessageFaults(b"topic")
        faults.set(1, **shares)
        passes, data = ZmqMessageFilter(faults), hello + messages(0, 1, 2, 3)
        return b"".join(passes(data[n : n + portion]) for n in range(0, len(data), portion))

    assert through() == hello + messages(0, 1, 2, 3)
    assert through(loss=1.0) == hello
    assert through(twice=1.0) == hello + messages(0, 0, 1, 1, 2, 2, 3, 3)
    assert through(late=1.0) == hello + messages(1, 0, 3, 2)


async def test_the_proxy_does_what_it_says() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = FaultProxy(server.sockets[0].getsockname()[1])
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)

    async def answer(said: bytes, length: int) -> bytes:
        writer.write(said)
        return await asyncio.wait_for(reader.readexactly(length), 60)

    assert await answer(b"a", 1) == b"a"
    proxy.latency_s, proxy.bytes_per_s = 0.01, 1000.0
    assert await answer(b"b", 1) == b"b"
    proxy.stall("down")
    writer.write(b"c")
    proxy.inject("down", b"!")
    assert await asyncio.wait_for(reader.readexactly(1), 60) == b"!"  # and c waits
    await proxy.heal()
    assert await answer(b"", 1) == b"c"
    await proxy.refuse()
    assert await answer(b"d", 1) == b"d"  # those that are open stay
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    proxy.cut()
    with pytest.raises((asyncio.IncompleteReadError, OSError)):
        await answer(b"e", 1)
    await proxy.heal()
    proxy.stall("up", "down")
    _, deaf = await asyncio.open_connection("127.0.0.1", proxy.port)
    await until(lambda: proxy.connections == 2)
    deaf.close()
    writer.close()
    await proxy.close()
    server.close()
    await server.wait_closed()
