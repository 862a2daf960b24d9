"""What a KV-event publisher sends again, and its heartbeats, on planes that the test controls."""

import msgspec
import pytest
from support.kv_events.publisher_scene import RESYNC, Scene, SwitchedPlane, stored
from support.polling import until

from dynamo_router.base.envelope import decode_envelope
from dynamo_router.indexer.wire.codec import decode_event_message
from dynamo_router.indexer.wire.events import Cleared
from dynamo_router.kv_events.resync_wire import ResyncRequest, encode_request


async def test_what_was_missed_is_sent_again_as_it_was(scene: Scene) -> None:
    await scene.tell(1, 2, 3, 4)
    sent = scene.messages.copy()
    await scene.ask(2, 3)
    await until(lambda: scene.beats)
    assert scene.messages == [*sent, *sent[1:3]]
    stats = scene.publisher.stats
    assert (stats.replays, stats.announcements) == (1, 0)
    await scene.tell(5)
    assert scene.events[-1].event_id == 5, "the numbering goes on"


async def test_the_answer_ends_with_a_heartbeat_even_if_nothing_was_missed(scene: Scene) -> None:
    await scene.tell(1, 2)
    await scene.ask(3)
    await until(lambda: scene.beats)
    assert len(scene.messages) == 2 and scene.cache.snapshots == 0
    envelope = decode_envelope(scene.beats[0])
    assert (envelope.publisher_id, envelope.sequence) == (scene.publisher.publisher_id, 1)
    assert envelope.topic == "kv-heartbeat"
    told = {"worker_id": 7, "dp_rank": 2, "last_event_id": 2}
    assert msgspec.msgpack.decode(envelope.payload) == told
    assert decode_event_message(scene.beats[0]) == []


async def test_what_cannot_be_sent_again_is_announced(scene: Scene) -> None:
    scene.cache.blocks = [1, 2]
    await scene.tell(1, 2)
    for number, (first, publisher) in enumerate([(4, 0), (1, 12345)], start=1):
        await scene.ask(first, publisher=publisher)  # the future, another one's
        await until(lambda number=number: scene.publisher.stats.announcements == number)
        scene.clock.advance(1.0)
    assert scene.publisher.stats.replays == 0
    await scene.ask(1)  # an announcement is out already: that is sent again
    await until(lambda: scene.publisher.stats.replays == 1 and scene.beats)
    assert scene.publisher.stats.announcements == 2 and scene.messages[-1] == scene.messages[-2]


async def test_a_publisher_that_keeps_nothing_announces() -> None:
    scene = Scene(SwitchedPlane(), max_replay_events=1)
    await scene.start()
    scene.cache.blocks = [1, 2, 3]
    await scene.tell(1, 2, 3)
    await scene.ask(2)
    await until(lambda: len(scene.events) == 5)
    assert scene.data[3:] == [Cleared(), stored(1, 2, 3)]
    await scene.publisher.close()


async def test_replays_are_coalesced_and_spaced(scene: Scene) -> None:
    await scene.tell(1, 2, 3, 4, 5)
    sent = scene.messages.copy()
    await scene.ask(2, 2)
    await until(lambda: len(scene.messages) == 6)
    for first in (5, 3, 4):
        await scene.ask(first, first)
    await scene.idle()
    assert len(scene.messages) == 6
    scene.publisher.stored(None, [6], [6])
    await until(lambda: len(scene.messages) == 7)  # news do not wait
    scene.clock.advance(0.05)
    await until(lambda: len(scene.messages) == 10)
    assert scene.messages[7:] == sent[2:5]
    assert scene.publisher.stats.replays == 2


async def test_requests_during_an_outage_are_answered_after_it(scene: Scene) -> None:
    await scene.tell(1, 2)
    scene.plane.switch(False)
    scene.publisher._on_resync(
        RESYNC, encode_request(ResyncRequest(7, 2, scene.publisher.publisher_id, 2))
    )
    await scene.idle()
    assert len(scene.messages) == 2 and scene.plane.lost == 0
    scene.plane.switch(True)
    await until(lambda: len(scene.messages) >= 4)
    assert scene.messages[1] in scene.messages[2:] and Cleared() in scene.data


async def test_heartbeats_say_which_event_was_the_last() -> None:
    scene = Scene(SwitchedPlane(), heartbeat_s=0.01)
    await scene.start()
    await until(lambda: len(scene.beats) >= 2)

    def last() -> int:
        told = msgspec.msgpack.decode(decode_envelope(scene.beats[-1]).payload)
        return int(told["last_event_id"])

    assert last() == 0, "the first one is at once, before any event"
    await scene.tell(1, 2)
    await until(lambda: last() == 2)
    scene.plane.switch(False)
    beats = len(scene.beats)
    await scene.idle()
    assert len(scene.beats) == beats and scene.plane.lost == 0
    await scene.publisher.close()
    assert scene.publisher.stats.heartbeats >= beats


async def test_an_impossible_first_event() -> None:
    with pytest.raises(ValueError, match="start_event_id -1 is negative"):
        Scene(SwitchedPlane(), start_event_id=-1)


async def test_an_impossible_heartbeat_interval() -> None:
    with pytest.raises(ValueError, match="heartbeat_s"):
        Scene(SwitchedPlane(), heartbeat_s=-1.0)
