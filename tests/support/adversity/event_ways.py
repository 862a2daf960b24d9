"""The ways that mock engines tell their KV events by, each with what may go wrong on it.

An engine that tells them over ZMQ or HTTP is a mock engine whose SubscribeKvEvents is read past
all faults and told again as vLLM or TensorRT-LLM's OpenAI server does, over real sockets.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from grpc import aio
from support.adversity.fault_proxy import FaultProxy, garbage
from support.kv_events import drained_engine, engine_events
from support.kv_events.drained_engine import DrainedEngine

from dynamo_router.engines.mocker.server import MockServer
from dynamo_router.workers.trtllm_proto import SERVICE, common_pb

Fault = Callable[[Random], Awaitable[None]]
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Else a channel to an engine that was started anew inherits that nobody listened a moment ago."""


class EventWay:
    """One engine and the network in front of what it tells, here over gRPC."""

    def __init__(self, engine: MockServer) -> None:
        self.engine = engine
        self.loses = False
        """whether a fault took events that nobody can have again"""
        self.proxies: list[FaultProxy] = []

    @property
    def faults(self) -> list[Fault]:
        return [self.cut, self.refused, self.half_open, self.deaf, self.late, self.slow,
                self.garbled, self.restarted]  # fmt: skip

    @property
    def url(self) -> str:
        """What a router is given."""
        return f"grpc://{self.proxies[0].address}"

    async def start(self) -> None:
        await self._listen(int(self.engine.address.rpartition(":")[2]))

    async def close(self) -> None:
        for proxy in self.proxies:
            await proxy.close()

    async def heal(self) -> None:
        for proxy in self.proxies:
            await proxy.heal()

    async def cut(self, rng: Random) -> None:
        rng.choice(self.proxies).cut()

    async def refused(self, rng: Random) -> None:
        for proxy in self.proxies:
            await proxy.refuse()
            proxy.cut()

    async def half_open(self, rng: Random) -> None:
        rng.choice(self.proxies).stall(rng.choice(("up", "down")))

    async def deaf(self, rng: Random) -> None:
        proxy = rng.choice(self.proxies)
        proxy.stall("up", "down")
        proxy.cut()

    async def late(self, rng: Random) -> None:
        rng.choice(self.proxies).latency_s = rng.uniform(0.05, 0.5)

    async def slow(self, rng: Random) -> None:
        rng.choice(self.proxies).bytes_per_s = rng.uniform(5_000, 50_000)

    async def garbled(self, rng: Random) -> None:
        rng.choice(self.proxies).inject(rng.choice(("up", "down")), garbage(rng.randrange(1000)))

    async def restarted(self, rng: Random) -> None:
        """The engine is another one, with an empty cache and numbers that begin anew."""
        await self.engine.restart()

    async def _listen(self, *ports: int) -> None:
        for port in ports:
            proxy = FaultProxy(port)
            await proxy.start()
            self.proxies.append(proxy)


class ToldAgain(EventWay):
    """What an engine tells over gRPC, told in another way: `_tell`."""

    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._listen(*await self._open())
        await self._follow()

    async def close(self) -> None:
        await self._unfollow()
        await super().close()
        await self._shut()

    async def restarted(self, rng: Random) -> None:
        await self._unfollow()
        await self._shut()
        await self.engine.restart()
        await self._open()
        await self._follow()

    async def _follow(self) -> None:
        """Returns once the engine's state, which is that of an empty cache, was told."""
        begun = asyncio.Event()
        self._task = asyncio.create_task(self._read(begun))
        beginning = asyncio.create_task(begun.wait())
        await asyncio.wait({self._task, beginning}, return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()
        if self._task.done():
            await self._task
            raise AssertionError("the engine ended its events")

    async def _unfollow(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _read(self, begun: asyncio.Event) -> None:
        async with aio.insecure_channel(self.engine.address, options=OWN_CONNECTION) as channel:
            subscribe: Any = channel.unary_stream(
                f"/{SERVICE}/SubscribeKvEvents",
                common_pb.SubscribeKvEventsRequest.SerializeToString,
                common_pb.KvEventBatch.FromString,
            )
            request = common_pb.SubscribeKvEventsRequest()
            async for batch in subscribe(request, wait_for_ready=True):
                told = [event for event in batch.events if not event.HasField("cleared")]
                if told:
                    await self._tell(told)
                begun.set()

    async def _open(self) -> list[int]:
        """Listen; on which ports."""
        raise NotImplementedError

    async def _shut(self) -> None:
        raise NotImplementedError

    async def _tell(self, events: list[Any]) -> None:
        raise NotImplementedError


class OverZmq(ToldAgain):
    """As vLLM: a PUB socket, and one that replays what was published."""

    kept = 10_000

    def __init__(self, engine: MockServer) -> None:
        super().__init__(engine)
        from support.kv_events.zmq_publisher import ZmqPublisher

        self._publisher = ZmqPublisher(kept=self.kept)
        self.loses = self.kept < 1000

    @property
    def faults(self) -> list[Fault]:
        return [*super().faults, self.lost, self.told_twice, self.out_of_order, self.cut_short,
                self.numbers_go_back]  # fmt: skip

    @property
    def url(self) -> str:
        events, replay = (proxy.address for proxy in self.proxies)
        return f"{self.engine.url}?events=tcp://{events}&replay=tcp://{replay}"

    async def heal(self) -> None:
        await super().heal()
        publisher = self._publisher
        publisher.cut_after, publisher.lose, publisher.twice, publisher.swap = None, 0, 0, 0

    async def lost(self, rng: Random) -> None:
        self._publisher.lose = rng.randint(1, 4)

    async def told_twice(self, rng: Random) -> None:
        self._publisher.twice = rng.randint(1, 4)

    async def out_of_order(self, rng: Random) -> None:
        self._publisher.swap = rng.randint(1, 2)

    async def cut_short(self, rng: Random) -> None:
        """Replies of the replay socket end in their midst, and messages are lost that need it."""
        self._publisher.cut_after, self._publisher.lose = rng.randint(0, 3), 2

    async def numbers_go_back(self, rng: Random) -> None:
        """Another engine behind a gateway, which keeps the connection."""
        await self._unfollow()
        await self.engine.restart()
        self._publisher.begin_anew()
        await self._follow()

    async def _open(self) -> list[int]:
        self._publisher.start()
        return [self._publisher.port, self._publisher.replay_port]

    async def _shut(self) -> None:
        await self._publisher.stop()

    async def _tell(self, events: list[Any]) -> None:
        await self._publisher.publish(*map(_as_vllm, events))


class OverZmqForgetful(OverZmq):
    """With a replay that has but the last messages."""

    kept = 4


class OverHttp(ToldAgain):
    """As TensorRT-LLM's OpenAI server: each event is told once, to whoever asks."""

    def __init__(self, engine: MockServer) -> None:
        super().__init__(engine)
        self._drained = DrainedEngine()
        self.loses = True

    @property
    def faults(self) -> list[Fault]:
        return [*super().faults, self.lost, self.answer_lost, self.told_twice, self.failing,
                self.unreadable]  # fmt: skip

    @property
    def url(self) -> str:
        return f"{self.engine.url}?events=http://{self.proxies[0].address}"

    async def heal(self) -> None:
        await super().heal()
        self._drained.status, self._drained.body = 200, None
        self._drained.answers_lost = self._drained.told_twice = 0

    async def lost(self, rng: Random) -> None:
        """The engine's buffer runs over, or somebody else asks for events, too."""
        for _ in range(rng.randint(1, 5)):
            self._drained.happen({"type": "removed", "block_hashes": []}, lost=True)

    async def answer_lost(self, rng: Random) -> None:
        self._drained.answers_lost = 1

    async def told_twice(self, rng: Random) -> None:
        self._drained.told_twice = 1

    async def failing(self, rng: Random) -> None:
        self._drained.status = rng.choice((500, 502, 503))

    async def unreadable(self, rng: Random) -> None:
        self._drained.body = rng.choice((b"", b"[", b'[{"event_id": 1}]', garbage(7)))

    async def _open(self) -> list[int]:
        await self._drained.start()
        return [self._drained.port]

    async def _shut(self) -> None:
        await self._drained.stop()
        self._drained.begin_anew()

    async def _tell(self, events: list[Any]) -> None:
        for event in events:
            self._drained.happen(_as_trtllm(event))


WAYS: dict[str, type[EventWay]] = {
    "grpc": EventWay,
    "zmq": OverZmq,
    "zmq, few kept": OverZmqForgetful,
    "http": OverHttp,
}


def _unsigned(number: int) -> int:
    return number % 2**64


def _parent(stored: Any) -> int | None:
    known = stored.HasField("parent_block_hash")
    return _unsigned(stored.parent_block_hash) if known else None


def _as_vllm(event: Any) -> dict[str, Any]:
    if event.HasField("removed"):
        return engine_events.removed(*map(_unsigned, event.removed.block_hashes))
    blocks = event.stored.blocks
    return engine_events.stored(
        [_unsigned(block.block_hash) for block in blocks],
        [token for block in blocks for token in block.token_ids],
        blocks[0].block_size,
        _parent(event.stored),
    )


def _as_trtllm(event: Any) -> dict[str, Any]:
    if event.HasField("removed"):
        return {"type": "removed", "block_hashes": list(map(_unsigned, event.removed.block_hashes))}
    blocks = [
        drained_engine.one_block(_unsigned(block.block_hash), list(block.token_ids), {})
        for block in event.stored.blocks
    ]
    return {"type": "stored", "parent_hash": _parent(event.stored), "blocks": blocks}
