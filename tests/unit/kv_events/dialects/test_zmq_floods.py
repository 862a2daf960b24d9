"""What an engine sends in masses, or without sense: others on the loop get their turn meanwhile."""

import asyncio
from typing import Any, NamedTuple

import pytest

from dynamo_router.kv_events.dialects import zmq_events
from dynamo_router.kv_events.dialects.zmq_events import MESSAGES_A_TURN, ZmqEvents

pytest.importorskip("zmq")

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
