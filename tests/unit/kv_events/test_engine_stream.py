"""A reader of SubscribeKvEvents before an index without room, and with blocks it cannot take."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.polling import until

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.source import SourceState
from dynamo_router.kv_events import engine_stream
from dynamo_router.kv_events.dialects import PulledCall
from dynamo_router.kv_events.engine_stream import EngineStream, StreamCounts
from dynamo_router.process import supervised
from dynamo_router.workers.trtllm_proto import common_pb

WORKER = WorkerWithDpRank(1, 0)
SIZE = 4


def batch(number: int, *, size: int = SIZE) -> bytes:
    """The number-th batch of an engine: one event of one block."""
    made = common_pb.KvEventBatch(sequence_number=number)
    stored = made.events.add(event_id=number).stored
    stored.blocks.add(block_hash=number, token_ids=[number] * size, block_size=size)
    data: bytes = made.SerializeToString()
    return data


class Call(PulledCall[bytes]):
    """A subscription whose batches come from a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: asyncio.Queue[bytes] = asyncio.Queue()

    async def initial_metadata(self) -> None:
        """Accepted at once."""

    async def _pull(self) -> bytes:
        return await self.batches.get()


class Engine:
    """The way to it, and who hears how its stream is."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.refused: list[str] = []

    def subscribe_kv_events(self, start: int) -> Call:
        self.calls.append(Call())
        return self.calls[-1]

    async def of(self, worker_id: int) -> object:
        return self

    def kind_of(self, worker_id: int) -> str:
        return "grpc"

    async def close(self, worker_id: int) -> None:
        """Nothing was opened."""

    def on_stream(self, worker_id: int, up: bool, *, lasting: bool = False) -> None:
        """It shows in `calls`."""

    def on_refused(self, worker_id: int, reason: str) -> None:
        self.refused.append(reason)


class SmallIndex(EventIndex):
    """Has room for so many messages, until it is given more."""

    takes = 10**9

    def post(self, message: bytes) -> bool:
        if self.takes <= 0:
            return False
        self.takes -= 1
        return super().post(message)


class Rig:
    def __init__(self) -> None:
        self.engine, self.index = Engine(), SmallIndex()
        self.index.await_replays()
        self.stream = EngineStream(
            1,
            [0],
            self.index,
            self.engine,
            StreamCounts(),
            block_size=SIZE,
            subscribers=self.engine,  # type: ignore[arg-type]
        )
        self.index.announce_publisher(WORKER, self.stream.publisher_id(0))
        self.stream.believe(True)

    async def call(self, number: int = 1) -> Call:
        """The number-th subscription, once it is made."""
        await until(lambda: len(self.engine.calls) >= number)
        return self.engine.calls[number - 1]

    def knows(self, blocks: int) -> bool:
        self.index.flush()
        (source,) = self.index.sources()
        return source.blocks == blocks


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(engine_stream, "FULL_WAIT_S", 0.001)
    made = Rig()
    made.stream.open()
    yield made
    await made.stream.close()
    made.index.close()


async def test_what_a_full_index_does_not_take_waits_in_its_order(rig: Rig) -> None:
    call = await rig.call()
    call.batches.put_nowait(batch(1))
    await until(lambda: rig.knows(1))
    rig.index.takes = 0
    for number in range(2, 7):
        call.batches.put_nowait(batch(number))
    await until(lambda: call.batches.qsize() == 4)  # one waits, the others are not even read
    for _ in range(3):
        await asyncio.sleep(0)
    assert call.batches.qsize() == 4 and rig.knows(1)
    rig.index.takes = 10**9
    await until(lambda: rig.knows(6))
    (source,) = rig.index.sources()
    assert source.state is SourceState.EXACT and source.gaps == 0


async def test_a_stream_that_begins_anew_while_the_index_is_full_leaves_no_gap(rig: Rig) -> None:
    """What was numbered for the index gets there, whatever becomes of its subscription."""
    call = await rig.call()
    call.batches.put_nowait(batch(1))
    await until(lambda: rig.knows(1))
    rig.index.takes = 0
    call.batches.put_nowait(batch(2))
    await until(lambda: call.batches.empty())
    await rig.stream.close()
    rig.index.takes = 10**9
    rig.stream.open()
    again = await rig.call(2)
    again.batches.put_nowait(batch(1))
    await until(lambda: rig.knows(1))
    (source,) = rig.index.sources()
    assert source.state is SourceState.EXACT and source.gaps == 0


async def test_blocks_of_another_size_are_refused_by_name(rig: Rig) -> None:
    call = await rig.call()
    call.batches.put_nowait(batch(1, size=2 * SIZE))
    await until(lambda: rig.engine.refused == ["blocks of 8 tokens, the router's have 4"])
    assert rig.knows(0)


async def test_a_client_that_is_closed_first_ends_a_subscription_and_no_loop(
    rig: Rig,
) -> None:
    """Before its first batch and behind it: the stream asks again, and nothing has failed."""
    before = supervised.failures.total()
    for number, batches in ((1, 0), (2, 1)):
        call = await rig.call(number)
        if batches:
            call.batches.put_nowait(batch(1))
            await until(lambda: rig.knows(1))
        await until(lambda call=call: call._reading is not None)  # type: ignore[misc]
        call.cancel()
        await until(lambda: rig.stream.error == "its client was closed")
    await rig.call(3)
    assert supervised.failures.total() == before
