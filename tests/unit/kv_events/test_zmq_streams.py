"""A stream over real ZMQ sockets: late, lossy, restarted, with a replay and without."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
import zmq
from support.adversity.fault_proxy import FaultProxy
from support.adversity.zmq_messages import CUT_SHORT
from support.kv_events.engine_events import removed, stored
from support.kv_events.stream_reader import SIZE, StreamReader, block, reading_stream
from support.kv_events.zmq_publisher import ZmqPublisher  # noqa: E402 it needs the package
from support.polling import closed_after, until

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.kv_events.dialects import EventsEnded, zmq_events
from dynamo_router.kv_events.dialects.zmq_events import ZmqEvents
from dynamo_router.kv_events.event_subscribers import EventSubscribers
from dynamo_router.kv_events.source_choice import STREAMS, EventSource
from dynamo_router.workers.worker_url import WorkerUrl

pytestmark = pytest.mark.usefixtures("leaves_nothing")
W = WorkerWithDpRank(7)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_events, "REPLAY_WAIT_S", 0.2)
    monkeypatch.setattr(zmq_events, "ASK_AGAIN_S", (0.02, 0.1))
    monkeypatch.setattr(zmq_events, "QUIET_S", 0.1)
    monkeypatch.setattr(zmq_events, "RENEW_S", 0.2)


def reading(
    publisher: ZmqPublisher, *, replay: bool = True, allowed: tuple[EventSource, ...] = STREAMS
) -> AbstractAsyncContextManager[StreamReader]:
    again = publisher.replay_url if replay else None
    url = WorkerUrl("127.0.0.1:1", events=publisher.url, replay=again)
    return reading_stream(url, allowed=allowed)


@pytest.fixture
async def publisher() -> AsyncIterator[ZmqPublisher]:
    async with ZmqPublisher() as made:
        yield made


async def tell(publisher: ZmqPublisher, *numbers: int) -> None:
    """One message per block: that comes or, negative, goes."""
    for number in numbers:
        if number < 0:
            await publisher.publish(removed(100 - number))
        else:
            await publisher.publish(stored([100 + number], block(number), SIZE))


@pytest.mark.parametrize("topic", [True, False])
async def test_a_late_reader_gets_all_by_the_replay(publisher: ZmqPublisher, topic: bool) -> None:
    publisher.topic_in_replay = topic
    await tell(publisher, 1, 2, 3, -2)
    async with reading(publisher) as reader:
        await until(reader.holds(1, 3))
        assert reader.stream.is_complete and reader.subscribers.source_of(7) is EventSource.ZMQ
        await tell(publisher, 4, -1)
        await until(reader.holds(3, 4))
        assert reader.counts.gaps <= 1 and reader.up == [True]  # what came before it subscribed


async def test_an_engine_that_moved_leaves_no_socket_to_its_first_address(
    publisher: ZmqPublisher,
) -> None:
    urls = [WorkerUrl("127.0.0.1:1", events=publisher.url)]
    subscribers = EventSubscribers(lambda _: None, lambda _: urls[-1], SIZE)
    first = await subscribers.of(7)
    assert isinstance(first, zmq_events.ZmqEvents)
    call = first.subscribe_kv_events(0)
    await call.initial_metadata()
    call.cancel()
    sockets = first._context
    assert await subscribers.of(7) is first and not sockets.closed
    async with ZmqPublisher() as moved:
        urls.append(WorkerUrl("127.0.0.1:1", events=moved.url))
        assert await subscribers.of(7) is not first and sockets.closed
        urls.append(WorkerUrl("127.0.0.1:1"))
        assert await subscribers.of(7) is None
    await subscribers.close(7)


async def test_lost_messages_are_replayed(publisher: ZmqPublisher) -> None:
    async with reading(publisher) as reader:
        await tell(publisher, 1)
        await until(reader.holds(1))
        publisher.lose = 2
        await tell(publisher, 2, -1, 3)
        await until(reader.holds(2, 3))
        assert reader.stream.is_complete and reader.counts.gaps == 1
        assert publisher.asked[-1] == 1  # no more than what was missing


async def test_a_replay_cut_short_is_asked_for_again(publisher: ZmqPublisher) -> None:
    publisher.cut_after = 2
    await tell(publisher, 1, 2, 3)
    async with reading(publisher) as reader:
        await until(reader.holds(1, 2, 3))  # with no word of the engine's in between
        assert publisher.asked[0] == 0 and 2 in publisher.asked
        publisher.cut_after, publisher.lose = 0, 1
        await tell(publisher, 4, 5)
        await until(lambda: publisher.asked[-1] >= 3)
        publisher.cut_after = None
        await until(reader.holds(1, 2, 3, 4, 5))
        assert reader.stream.is_complete
        seen = reader.subscribers.short_replays
        assert seen > 0
        await reader.subscribers.close(W.worker_id)
        assert reader.subscribers.short_replays >= seen  # it is counted on


async def test_a_last_message_that_gets_lost_is_asked_for(publisher: ZmqPublisher) -> None:
    async with reading(publisher) as reader:
        await tell(publisher, 1, 2)
        await until(reader.holds(1, 2))
        publisher.lose = 1
        await tell(publisher, -1)
        await until(reader.holds(2))
        assert reader.stream.is_complete and reader.counts.gaps == 0


async def test_messages_told_twice_or_out_of_order_change_nothing(publisher: ZmqPublisher) -> None:
    async with reading(publisher) as reader:
        await tell(publisher, 1)
        await until(reader.holds(1))
        publisher.twice = publisher.swap = 2
        await tell(publisher, 2, -1, 3, 4, -2, 5)
        await until(reader.holds(3, 4, 5))
        assert reader.stream.is_complete


async def test_what_the_replay_keeps_no_more_is_not_claimed(publisher: ZmqPublisher) -> None:
    async with reading(publisher) as reader:
        await tell(publisher, 1)
        await until(reader.holds(1))
        publisher.lose = 1
        await tell(publisher, -1)
        publisher.kept.clear()
        await tell(publisher, 2)
        await until(reader.holds(2))
        assert not reader.stream.is_complete


async def test_without_a_replay_it_knows_from_then_on(publisher: ZmqPublisher) -> None:
    await tell(publisher, 1)
    async with reading(publisher, replay=False) as reader:
        await until(lambda: bool(reader.up))
        await tell(publisher, 2)
        await until(reader.holds(2))
        assert not reader.stream.is_complete
        publisher.lose = 1
        await tell(publisher, -2, 3)
        await tell(publisher, 4)
        await until(lambda: not reader.holds(2)() and reader.counts.gaps == 1)


@pytest.mark.parametrize("replay", [True, False])
async def test_an_engine_that_is_started_anew_is_forgotten(
    publisher: ZmqPublisher, replay: bool
) -> None:
    async with reading(publisher, replay=replay) as reader:
        await until(lambda: bool(reader.up))
        await tell(publisher, 1, 2, 3)
        await until(reader.holds(1, 2, 3))
        await publisher.stop()
        await until(lambda: reader.up[-1] is False)
        publisher.start()
        await tell(publisher, 5)
        await until(lambda: reader.up[-1] is True)
        await tell(publisher, 6)
        if replay:
            await until(reader.holds(5, 6))
            assert reader.stream.is_complete
        else:
            await until(lambda: not reader.holds(1, 2, 3)() and reader.stream.is_synced)


@pytest.mark.parametrize("replay", [True, False])
async def test_a_quiet_engine_that_was_started_anew_is_forgotten(
    publisher: ZmqPublisher, replay: bool
) -> None:
    async with reading(publisher, replay=replay) as reader:
        await until(lambda: bool(reader.up))
        await tell(publisher, 1, 2)
        await until(reader.holds(1, 2))
        await publisher.stop()
        await until(lambda: reader.up[-1] is False)
        publisher.start()
        await until(reader.holds())
        await until(lambda: reader.stream.is_complete is replay)


async def test_a_connection_that_came_late_is_the_first_one(
    publisher: ZmqPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was lost by the sockets that were tried before: what it says first is heard."""
    await publisher.stop()
    tried: list[ZmqEvents] = []
    open_socket = ZmqEvents._open_socket

    def counted(events: ZmqEvents) -> None:
        tried.append(events)
        open_socket(events)

    monkeypatch.setattr(ZmqEvents, "_open_socket", counted)
    events = ZmqEvents(publisher.url, None)
    opening = asyncio.create_task(events.subscribe_kv_events(1).initial_metadata())
    try:
        await until(lambda: len(tried) > 1)
        publisher.start()
        await opening  # as lost it would raise EventsLost: somebody else may have answered
    finally:
        opening.cancel()
        await events.close()


async def test_a_numbering_that_goes_back_is_noticed(publisher: ZmqPublisher) -> None:
    async with reading(publisher) as reader:
        await tell(publisher, 1, 2, 3)
        await until(reader.holds(1, 2, 3))
        publisher.number = 0  # as behind a proxy, which keeps the connection
        publisher.kept.clear()
        await tell(publisher, 7)
        await until(reader.holds(7))
        await tell(publisher, 8)
        await until(reader.holds(7, 8))
        assert reader.stream.is_complete


async def test_damaged_messages_begin_it_anew(publisher: ZmqPublisher) -> None:
    async with reading(publisher) as reader:
        await tell(publisher, 1)
        await until(reader.holds(1))
        await publisher.publish_bytes(b"\xc1")
        await until(lambda: reader.counts.undecodable > 0)
        publisher.kept = type(publisher.kept)(entry for entry in publisher.kept if entry[0] != 1)
        await tell(publisher, 2)
        await until(reader.holds(2))  # it cannot know what the message had said of 1
        assert not reader.refused


@pytest.mark.parametrize("beginning", CUT_SHORT)
async def test_a_connection_out_of_step_is_made_anew(
    publisher: ZmqPublisher, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(zmq_events, "PONG_MS", 200)
    proxy = FaultProxy(publisher.port)
    await proxy.start()
    monkeypatch.setattr(ZmqPublisher, "url", f"tcp://{proxy.address}")
    try:
        async with reading(publisher, replay=False) as reader:
            await until(lambda: bool(reader.up))
            await tell(publisher, 1)
            await until(reader.holds(1))
            proxy.inject("down", beginning)
            await until(lambda: False in reader.up)  # without a word of the engine's
            await until(reader.holds())  # nobody knows what it said meanwhile
            await until(lambda: reader.up[-1] is True)
            await tell(publisher, 2, 3)
            await until(reader.holds(2, 3))
            assert not reader.stream.is_complete
    finally:
        await proxy.close()


async def test_what_is_no_message_of_a_stream_is_passed_over(publisher: ZmqPublisher) -> None:
    async with reading(publisher) as reader:
        await tell(publisher, 1)
        await until(reader.holds(1))
        await publisher.send([b"kv", b"no number", b""])
        await tell(publisher, 2)
        await until(reader.holds(1, 2))
        assert reader.stream.is_complete


async def test_another_block_size_is_refused_by_name(publisher: ZmqPublisher) -> None:
    await publisher.publish(stored([1], block(1) + block(2), 2 * SIZE))
    async with reading(publisher) as reader:
        await until(lambda: bool(reader.refused))
        assert reader.refused == ["blocks of 8 tokens, the router's have 4"]


async def test_streams_that_are_not_allowed_are_not_read(publisher: ZmqPublisher) -> None:
    async with reading(publisher, allowed=(EventSource.GRPC,)) as reader:
        await until(lambda: reader.up == [False])
        assert publisher.asked == []


async def test_a_socket_that_cannot_be_had_is_tried_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*of: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    async with ZmqPublisher() as publisher:
        async with closed_after(ZmqEvents(publisher.url, publisher.replay_url)) as events:
            with monkeypatch.context() as patch:
                patch.setattr(zmq_events, "ConnectionMonitor", fail)
                for _ in range(2):
                    with pytest.raises(EventsEnded, match="cannot be connected: Too many open"):
                        await events.subscribe_kv_events(0).initial_metadata()
            await events.subscribe_kv_events(0).initial_metadata()
