"""Engines over real ZMQ sockets that lie about their caches: false parents, hashes that mean
something else, replays that are none. What others hold stays exact, and so does the liar once it
is honest again.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.kv_events.engine_events import CLEARED, removed, stored
from support.kv_events.zmq_publisher import END, ZmqPublisher  # noqa: E402 it needs the package
from support.polling import until

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.hashing import block_hashes
from dynamo_router.kv_events.dialects import zmq_events
from dynamo_router.kv_events.engine_stream import EngineStream, StreamCounts
from dynamo_router.kv_events.event_subscribers import EventSubscribers
from dynamo_router.kv_events.source_choice import STREAMS
from dynamo_router.workers.worker_url import WorkerUrl

SIZE = 4
LIAR, HONEST = WorkerWithDpRank(7), WorkerWithDpRank(8)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_events, "REPLAY_WAIT_S", 0.2)
    monkeypatch.setattr(zmq_events, "ASK_AGAIN_S", (0.02, 0.1))
    monkeypatch.setattr(zmq_events, "QUIET_S", 0.1)
    monkeypatch.setattr(zmq_events, "RENEW_S", 0.2)


def tokens(*numbers: int) -> list[int]:
    return [token for number in numbers for token in range(SIZE * number, SIZE * (number + 1))]


class Listener:
    def on_stream(self, worker_id: int, up: bool, *, lasting: bool = False) -> None:
        pass

    def on_refused(self, worker_id: int, reason: str) -> None:
        raise AssertionError(reason)


def new_stream(worker: WorkerWithDpRank, index: EventIndex, publisher: ZmqPublisher) -> Any:
    url = WorkerUrl("127.0.0.1:1", events=publisher.url, replay=publisher.replay_url)
    subscribers = EventSubscribers(lambda _: None, lambda _: url, SIZE, STREAMS)
    stream = EngineStream(
        worker.worker_id,
        [0],
        index,
        Listener(),
        StreamCounts(),
        block_size=SIZE,
        subscribers=subscribers,
    )
    index.announce_publisher(worker, stream.publisher_id(0))
    stream.believe(True)
    return stream


class Fleet:
    """One engine that lies, one that does not, and the index of both."""

    def __init__(self, liar: ZmqPublisher, honest: ZmqPublisher, index: EventIndex) -> None:
        self.liar, self.honest, self.index = liar, honest, index

    def overlap(self, worker: WorkerWithDpRank, *numbers: int) -> int:
        """Blocks of a prompt of these that a worker is said to hold."""
        return int(self.index.scores(block_hashes(tokens(*numbers), SIZE)).get(worker, 0))

    async def until_heard(self) -> None:
        """Wait until all that both have sent is in the index."""
        self.mark = getattr(self, "mark", 500) + 1
        for publisher in (self.liar, self.honest):
            await publisher.publish(stored([10_000 + self.mark], tokens(self.mark), SIZE))
        mark = self.mark
        await until(lambda: self.overlap(LIAR, mark) == 1 == self.overlap(HONEST, mark))


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    async with ZmqPublisher() as liar, ZmqPublisher() as honest:
        index = EventIndex()
        streams = [new_stream(LIAR, index, liar), new_stream(HONEST, index, honest)]
        try:
            for stream in streams:
                stream.open()
            made = Fleet(liar, honest, index)
            await honest.publish(stored([1, 2, 3], tokens(1, 2, 3), SIZE))
            await made.until_heard()
            yield made
        finally:
            for stream in streams:
                await stream.close()
            index.close()


Lie = Callable[[], list[Any]]
LIES: dict[str, Lie] = {
    "a parent that nobody has": lambda: [stored([50], tokens(2), SIZE, parent=999)],
    "its own parent": lambda: [stored([51], tokens(2), SIZE, parent=51)],
    "parents in a circle": lambda: [
        stored([52], tokens(1), SIZE, parent=53),
        stored([53], tokens(2), SIZE, parent=52),
    ],
    "another engine's block as parent": lambda: [stored([54], tokens(3), SIZE, parent=2)],
    "one hash for two contents": lambda: [
        stored([55], tokens(4), SIZE),
        stored([55], tokens(5), SIZE),
        stored([56], tokens(6), SIZE, parent=55),
    ],
    "another engine's hashes": lambda: [
        stored([1, 2, 3], tokens(7, 8, 9), SIZE),
        removed(2),
        removed(1),
    ],
    "blocks that were never stored": lambda: [removed(n) for n in range(300)],
    "a chain of one hash": lambda: [stored([57] * 3, tokens(1, 2, 3), SIZE)],
    "hashes at their bounds": lambda: [
        stored([0, 2**64 - 1, 2**63], tokens(1, 2, 3), SIZE),
        stored([-1], tokens(2), SIZE, parent=-(2**63)),
    ],
    "cleared again and again": lambda: [CLEARED] * 300,
    "parents that are gone": lambda: [
        stored([58, 59], tokens(1, 2), SIZE),
        removed(58),
        stored([60], tokens(3), SIZE, parent=59),
    ],
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_concerns_the_liar_alone_and_passes(lie: str) -> None:
    async with fleet() as made:
        for event in LIES[lie]():
            await made.liar.publish(event)
        await made.until_heard()
        assert made.overlap(HONEST, 1, 2, 3) == 3
        assert made.overlap(HONEST, 7, 8, 9) == made.overlap(HONEST, 4) == 0
        await made.honest.publish(removed(3), stored([4], tokens(4), SIZE, parent=2))
        await made.until_heard()
        assert made.overlap(HONEST, 1, 2, 3) == 2 and made.overlap(HONEST, 1, 2, 4) == 3

        await made.liar.publish(CLEARED)
        await made.liar.publish(stored([1, 2], tokens(1, 2), SIZE))
        await made.until_heard()
        assert made.overlap(LIAR, 1, 2, 3) == 2 and made.overlap(LIAR, 7) == 0
        assert made.overlap(HONEST, 1, 2, 4) == 3


EMPTY = b"\x93\x01\x90\x00"


def number_of(n: int) -> bytes:
    return struct.pack(">Q", n)


REPLAYS: dict[str, list[tuple[bytes, bytes]]] = {
    "nothing but ends": [(END, b"")] * 5,
    "numbers that were not asked for": [(number_of(n), EMPTY) for n in range(900, 1000)],
    "numbers that go back": [(number_of(n), EMPTY) for n in (9, 8, 7, 6, 5)],
    "one number again and again": [(number_of(5), EMPTY)] * 500,
    "the largest number": [(number_of(2**64 - 2), EMPTY)],
    "no message pack": [(number_of(5), b"\xc1" * 50)],
    "no numbers": [(b"", b""), (b"xyz", b"abc")],
    "a megabyte of nesting": [(number_of(5), b"\x91" * (1 << 20))],
}

AT_ONCE = 20
"""Messages between two looks: some lies are over after a thousand."""
MADE_UP = ("numbers that were not asked for", "numbers that go back", "one number again and again")


@pytest.mark.parametrize("lie", REPLAYS)
async def test_a_false_replay_is_survived(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lies = True

    async def replay(self: ZmqPublisher, router: Any) -> None:
        while True:
            client, empty, start = await router.recv_multipart()
            self.asked.append(struct.unpack(">Q", start)[0])
            if self is made.liar and lies:
                for number, payload in REPLAYS[lie]:
                    await router.send_multipart([client, empty, b"t", number, payload])
                continue
            for number, payload in [each for each in self.kept if each[0] >= self.asked[-1]]:
                reply = [client, empty, b"t", number_of(number), payload]
                await router.send_multipart(reply)
            await router.send_multipart([client, empty, b"", END, b""])

    async with fleet() as made:
        monkeypatch.setattr(ZmqPublisher, "_replay", replay)
        for publisher in (made.liar, made.honest):  # the sockets stay, what answers is another
            assert publisher._task is not None
            publisher._task.cancel()
            publisher._task = asyncio.create_task(publisher._replay(publisher._router))
        before = len(made.liar.asked)
        made.liar.lose = 1
        await made.liar.publish(stored([20], tokens(20), SIZE))
        await made.liar.publish(stored([21], tokens(21), SIZE))
        await until(lambda: len(made.liar.asked) > before + 1)
        await made.honest.publish(stored([30], tokens(30), SIZE))
        await until(lambda: made.overlap(HONEST, 30) == 1)
        assert made.overlap(HONEST, 1, 2, 3) == 3
        lies = False
        number = 0

        async def goes_on() -> bool:
            """New blocks are known; and all, once its numbers come to those that were made up."""
            nonlocal number
            before = number
            for number in range(before + 1, before + 1 + AT_ONCE):
                await made.liar.publish(stored([2000 + number], tokens(2000 + number), SIZE))
            wanted = (20, 21, 2000 + before) if lie in MADE_UP else (2000 + before,)
            return before > 0 and all(made.overlap(LIAR, each) for each in wanted)

        if lie != "the largest number":  # no numbering comes to it: the engine harms itself alone
            await until(goes_on)
        assert made.overlap(HONEST, 1, 2, 3) == 3
