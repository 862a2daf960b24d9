"""A false router on a real NATS server: whatever it publishes, requests go on being served, what is
kept of it is bounded, and it is given back once it falls silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from random import Random

import pytest
from support.fake_engine import FakeEngine, prompt
from support.free_port import free_port
from support.polling import until
from support.serving import BLOCK, Ports, serving

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.runtime.event_planes import EmbeddedNats, NatsPlane, endpoint_subject
from dynamo_router.server.replica_sync import ROUTER_SYNC
from dynamo_router.slots.peers import (
    Ask,
    Batch,
    Beat,
    Booked,
    Ended,
    Message,
    Picture,
    Prefilled,
    encode_message,
)
from dynamo_router.slots.peers.peer_book import MAX_PEER_BYTES

SHARED = KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1, router_replica_sync=True)
SUBJECT = endpoint_subject("dynamo", "backend", "generate", ROUTER_SYNC)
FALSE = 77


class FalseRouter:
    """Publishes what it likes, and beats meanwhile."""

    def __init__(self, plane: NatsPlane, ports: Ports, worker_id: int) -> None:
        self._plane, self._worker_id = plane, worker_id
        assert ports.server.pool.replicas is not None
        self.replica = ports.server.pool.replicas.replica
        self.following = 0

    async def say(self, *messages: Message) -> None:
        for message in messages:
            await self._plane.publish(SUBJECT, encode_message(message))
        await self._plane.flush()

    async def beat(self) -> None:
        while True:
            await self.say(Beat(FALSE, "false", self.following))
            await asyncio.sleep(0.2)

    def bookings(self, first: int, number: int, blocks: int = 0, pad: int = 0) -> list[Booked]:
        worker, last = self._worker_id, first + number
        hashes = {n: Random(n).randbytes(8 * blocks) for n in range(first, last)}
        return [
            Booked(f"{n}".ljust(pad, "x"), worker, 0, hashes[n], 4096, 4096)
            for n in range(first, last)
        ]

    async def book(self, number: int) -> None:
        await self.say(Picture(FALSE, 0, 0, 1, []))
        for first in range(0, number, 250):
            await self.say(Batch(FALSE, self.following, self.bookings(first, 250)))
            self.following += 1


@asynccontextmanager
async def attacked() -> AsyncIterator[tuple[Ports, FalseRouter]]:
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats(free_port()))
        engine = await stack.enter_async_context(FakeEngine())
        ports = await stack.enter_async_context(
            serving(nats=nats.url, workers=(engine.url,), router=SHARED)
        )
        plane = NatsPlane(nats.url)
        stack.push_async_callback(plane.close)
        await hears(plane)
        [view] = ports.server.pool.router.workers()
        yield ports, FalseRouter(plane, ports, view.worker.worker_id)


async def hears(plane: NatsPlane) -> None:
    """Wait until the router can be told things: it greets once it listens."""
    greeted = asyncio.Event()
    listening = await plane.subscribe(SUBJECT, lambda subject, payload: greeted.set())
    async with asyncio.timeout(30):
        await greeted.wait()
    await listening.close()


async def served(ports: Ports, numbers: "count[int]") -> None:
    await asyncio.wait_for(ports.answers(prompt(f"own-{next(numbers)}", 64)), 30)


async def test_10_000_bookings_of_a_router_that_beats_stop_no_service() -> None:
    async with attacked() as (ports, false):
        numbers = count()
        await served(ports, numbers)
        await false.book(10_000)
        await until(lambda: len(false.replica.peers) == 10_000)
        beating = asyncio.create_task(false.beat())
        try:
            while false.replica.evidence.doubted == 0:
                await served(ports, numbers)
            for _ in range(20):
                await served(ports, numbers)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        [view] = ports.server.pool.router.workers()
        assert view.active_requests == view.own_requests == 0
        await until(lambda: len(false.replica.peers) == 0)  # it is silent, and gone


@pytest.mark.parametrize("kind", ["pictures", "gaps", "asks", "garbage", "long ids"])
async def test_what_is_kept_of_a_router_is_bounded_and_given_back(kind: str) -> None:
    async with attacked() as (ports, false):
        numbers, random = count(), Random(1)
        for turn in range(400):
            some = false.bookings(turn * 8, 8, blocks=2000, pad=500)
            if kind == "pictures":
                await false.say(Picture(FALSE, 9, turn, 4096, some))
            elif kind == "gaps":
                await false.say(Batch(FALSE, 9 + turn, some))
            elif kind == "asks":
                await false.say(Ask(random.getrandbits(53)), Ask(FALSE, 0))
            elif kind == "garbage":
                data = bytearray(encode_message(Batch(FALSE, 0, some)))
                data[random.randrange(len(data))] ^= 255
                await false._plane.publish(SUBJECT, bytes(data))
            else:
                await false.say(Batch(FALSE, 0, false.bookings(0, 1, pad=100_000)))
            assert false.replica.peers.bytes <= MAX_PEER_BYTES
        await served(ports, numbers)
        await until(lambda: false.replica.peers.bytes == 0)
        await served(ports, numbers)


MOST, LEAST = 2**64 - 1, -(2**63)  # that msgpack can write
MOST_COUNT = 2**32 - 1


async def test_numbers_at_their_ends_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    async with attacked() as (ports, false):
        numbers, worker = count(), false._worker_id
        await served(ports, numbers)
        longest = MOST_COUNT, MOST_COUNT, MOST_COUNT
        await false.say(
            Picture(FALSE, 0, 0, 1, []),
            Batch(
                FALSE,
                0,
                [
                    Booked("a", worker, 0, b"", *longest),
                    Booked("a", worker, 0, bytes(8), *longest),  # once more
                    Booked("rank", worker, MOST_COUNT, b"", *longest),
                    Booked("worker", MOST, MOST_COUNT, b"", *longest),
                    Prefilled("a", MOST_COUNT),
                    Prefilled("nobody's", MOST_COUNT),
                    Booked("b", worker, 0, b"\xff" * 80, 1, 1, MOST_COUNT, True),
                ],
            ),
        )
        await served(ports, numbers)
        await until(lambda: len(false.replica.peers) > 0)
        for number, event in enumerate(
            [
                *(Prefilled("b", each) for each in (MOST, LEAST, MOST_COUNT)),
                *(Ended("a", each) for each in (MOST, LEAST, MOST_COUNT)),
                Ended("nobody's", MOST),
                Ended("b", MOST_COUNT),
            ],
            1,
        ):  # each by itself: what is refused is the whole message
            await false.say(Batch(FALSE, number, [event]), Picture(FALSE, number + 1, 0, 1, []))
        await false.say(
            Ask(FALSE, LEAST),
            Ask(MOST, MOST),
            Picture(MOST, MOST, 4095, 4096, []),
            Picture(MOST, MOST, 0, 1, [Booked("c", worker, 0, b"", *longest)]),
            Batch(MOST, MOST, []),
            Batch(FALSE, MOST, [Ended("c")]),
            Beat(MOST, "false too", MOST),
            Beat(0, "", 0, leaving=True),
            Beat(FALSE, "false", MOST),
        )
        for _ in range(3):
            await served(ports, numbers)
        [view] = ports.server.pool.router.workers()
        assert view.own_requests == 0
        await until(lambda: len(false.replica.peers) == false.replica.peers.bytes == 0)
        await served(ports, numbers)
        assert view.active_requests == 0
        assert not [each for each in caplog.records if each.levelname == "ERROR"]
