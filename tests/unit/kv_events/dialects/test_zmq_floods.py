"""What an engine sends in masses, or without sense: others on the loop get their turn meanwhile."""

import asyncio
from collections.abc import Iterable
from itertools import chain, count, repeat
from typing import Any, NamedTuple

import pytest

from dynamo_router.kv_events.dialects import EventsLost, zmq_events
from dynamo_router.kv_events.dialects.zmq_events import MESSAGES_A_TURN, ZmqEvents

END = b"\xff" * 8
ZERO = bytes(8)


class Frame(NamedTuple):
    bytes: bytes
    more: bool


class Socket:
    """Always has the same message, without waiting, up to the thousandth."""

    def __init__(self, frames: list[bytes]) -> None:
        self.frames, self.read = frames, 0

    def recv_now(self, flags: int = 0) -> list[bytes]:
        self.read += 1
        assert self.read < 1000, "nobody else had a turn"
        return self.frames

    def frame_now(self, flags: int, copy: bool) -> Any:
        """The frames one after another, each of which says whether another one follows."""
        at = self.read % len(self.frames)
        self.recv_now()
        return Frame(self.frames[at], at + 1 < len(self.frames))

    async def recv_multipart(self) -> list[bytes]:
        return self.recv_now()

    async def send_multipart(self, frames: list[bytes]) -> None: ...

    def socket(self, kind: int) -> "Socket":
        return self

    def nothing(self, *of: Any) -> None: ...

    setsockopt = connect = close = nothing


def events() -> ZmqEvents:
    return ZmqEvents("tcp://127.0.0.1:1", "tcp://127.0.0.1:1")


async def turn_while(reading: "asyncio.Task[Any]", socket: Socket) -> None:
    await asyncio.sleep(0)
    assert socket.read == MESSAGES_A_TURN and not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize(
    "frames",
    [[b"junk"], [b"", b"1", b"2"], [b"", ZERO, b"told"], [b"", END, b"no number"]],
    ids=["frames", "number", "twice", "end"],
)
async def test_what_is_passed_over_leaves_others_their_turn(
    frames: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, socket = events(), Socket(frames)
    monkeypatch.setattr(socket, "recv", socket.frame_now, raising=False)
    monkeypatch.setattr(of, "_look", lambda: None)
    of._live, of._last = socket, (0, b"told")
    call = of.subscribe_kv_events(0)
    reading = asyncio.create_task(call.read())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert socket.read == MESSAGES_A_TURN * len(frames) and not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize("frames", [[b"", ZERO, b"told"], [b"junk"]], ids=["messages", "junk"])
async def test_a_replay_leaves_others_their_turn(frames: list[bytes]) -> None:
    of = events()
    of._context = socket = Socket(frames)
    await turn_while(asyncio.create_task(of._replay(0)), socket)


async def test_a_replay_of_junk_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_events, "REPLAY_WAIT_S", 0.01)
    of = events()
    of._context = socket = Socket([b"junk"])
    monkeypatch.setattr(socket, "recv_now", lambda: socket.frames)
    assert await of._replay(0) == ([], False)
    assert of.short_replays == 1


class Numbered(Socket):
    """Has one message after the other, of numbers that a test gives."""

    def __init__(self, numbers: Iterable[int], payload: bytes = b"x") -> None:
        super().__init__([])
        self.numbers, self.payload = iter(numbers), payload

    async def recv_multipart(self) -> list[bytes]:
        return [b"", next(self.numbers).to_bytes(8, "big"), self.payload]


async def replayed(numbers: Iterable[int], payload: bytes = b"x") -> list[int]:
    """What is taken of a replay from 3 on that has no end."""
    of = events()
    of._context = Numbered(numbers, payload)
    found, complete = await of._replay(3)
    assert not complete
    return [number for number, _ in found]


@pytest.mark.parametrize(
    ("numbers", "taken"),
    [
        ([], [3]),
        ([2, 1, 0], [3]),
        ([5, 4, 3], [3, 5]),
        ([1 << 63, (1 << 64) - 2], [3]),
        ([(1 << 63) - 1, 4], [3, (1 << 63) - 1]),
    ],
)
async def test_a_replay_without_an_end_whose_numbers_do_not_go_on_is_left(
    monkeypatch: pytest.MonkeyPatch, numbers: list[int], taken: list[int]
) -> None:
    monkeypatch.setattr(zmq_events, "REPLAY_WAIT_S", 0.01)
    assert await replayed(chain([3], numbers, repeat(3))) == taken


async def test_a_replay_without_an_end_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_events, "REPLAY_BYTES", 1000)
    assert await replayed(count(3), bytes(300)) == [3, 4, 5, 6]
    monkeypatch.setattr(zmq_events, "REPLAY_S", 0.01)
    monkeypatch.setattr(zmq_events, "MOST_HELD", 1 << 40)
    assert len(await replayed(count(3), b"")) > 1


def test_what_is_published_is_believed_over_a_replay_that_left_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = events()
    published = [4, 1 << 63]
    of._read.extend([b"", number.to_bytes(8, "big"), b"x"] for number in published)
    of._covered, of._heard = range(3, 1 << 62), 2
    monkeypatch.setattr(of, "_drain", lambda: False)
    with pytest.raises(EventsLost, match="started anew"):
        of.next()
    assert of.next() == (4, b"x")  # behind all being forgotten
    assert of.next() is None


async def test_an_end_that_says_something_is_none() -> None:
    of = events()
    of._context = Socket([b"", END, b"a number that no message has"])
    assert await of._replay(0) == ([], False)


async def test_messages_that_go_before_leave_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, read = events(), 0

    def counted() -> tuple[int, bytes]:
        nonlocal read
        read += 1
        assert read < 1000, "nobody else had a turn"
        return read, b""

    monkeypatch.setattr(of, "next", counted)
    call = of.subscribe_kv_events(10_000)
    reading = asyncio.create_task(call.read())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert read == MESSAGES_A_TURN and not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
