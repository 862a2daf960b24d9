"""Routers tell each other of sessions in the words of Dynamo's."""

import base64
import json
import time

import msgspec
import pytest
from support.places import VECTORS

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.envelope import decode_envelope
from dynamo_router.base.errors import EventError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.affinity import AffinityConfig, Session
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.replicas.session_sync import SESSION_AFFINITY, SessionSync

CHANNELS = VECTORS / "dynamo_event_channels.json"
RECORDED = [
    each
    for each in json.loads(CHANNELS.read_text())["messages"]
    if each["topic"] == SESSION_AFFINITY
]
FRAME_HEADER = 5
NOW_NS = max(time.time_ns(), RECORDED[0]["payload"]["sequence"])


class Site:
    def __init__(self, *workers: int) -> None:
        affinity = AffinityConfig(session_affinity_ttl_secs=60.0)
        config = KvRouterConfig(block_size=16, use_kv_events=False, affinity=affinity)
        self.router = KvRouter(config, clock=ManualClock(0.0))
        for worker_id in workers:
            self.router.add_worker(worker_id)
        self.sessions = self.router.sessions
        self.sync = SessionSync(self.sessions, 77, lambda: NOW_NS)

    def worker_of(self, key: str) -> WorkerWithDpRank | None:
        bound = self.sessions.wanted(Session(key))
        return None if bound is None else bound.worker


def test_what_dynamo_says_is_understood() -> None:
    assert len(RECORDED) == 5
    for each in RECORDED:
        worker_id = each["payload"]["worker_id"]
        site = Site(worker_id)
        site.sync.hear(base64.b64decode(each["frames_b64"][3])[FRAME_HEADER:])
        key = each["payload"]["session_id"]
        assert site.worker_of(key) == (worker_id, each["payload"]["dp_rank"])


def test_what_we_say_is_what_dynamo_says() -> None:
    site = Site(1)
    site.sessions.bind(Session("s0"), WorkerWithDpRank(1, 0))
    (message,) = site.sync.messages()
    envelope = decode_envelope(message)
    payload = msgspec.msgpack.decode(envelope.payload)
    recorded = RECORDED[0]["payload"]
    assert list(payload) == list(recorded)
    assert {key: type(value) for key, value in payload.items()} == {
        key: type(value) for key, value in recorded.items()
    }
    assert envelope.topic == SESSION_AFFINITY and envelope.publisher_id == 77


def test_a_session_of_another_set_of_workers_leaves_ours_as_it_is() -> None:
    ours, theirs = Site(1), Site(2)
    ours.sync = SessionSync(ours.sessions, 78, lambda: NOW_NS, elsewhere=lambda: {2})
    ours.sessions.bind(Session("a"), WorkerWithDpRank(1, 0))
    theirs.sessions.bind(Session("a"), WorkerWithDpRank(2, 0))
    for message in theirs.sync.messages():
        ours.sync.hear(message)
    assert ours.worker_of("a") == (1, 0)


def test_two_routers_agree_and_a_third_is_told_all() -> None:
    one, two, three = Site(1, 2), Site(1, 2), Site(1, 2)
    one.sessions.bind(Session("a"), WorkerWithDpRank(1, 0))
    for message in one.sync.messages():
        two.sync.hear(message)
    assert two.worker_of("a") == (1, 0)
    two.sessions.bind(Session("a"), WorkerWithDpRank(2, 0))  # moved
    for message in two.sync.messages():
        one.sync.hear(message)
    assert one.worker_of("a") == (2, 0)
    assert one.sync.messages() == []
    one.sync.on_newcomer(3, 0.0)
    one.sync.on_newcomer(3, 5.0)
    for message in one.sync.messages():
        three.sync.hear(message)
    assert three.worker_of("a") == (2, 0)


@pytest.mark.parametrize("ahead_s", [-60, 60])
def test_clocks_that_are_a_minute_apart_change_nothing(ahead_s: int) -> None:
    """The later binding counts, whichever router's time of day is behind."""
    one, two = Site(1, 2), Site(1, 2)
    wall_ns = NOW_NS + ahead_s * 10**9
    two.sync = SessionSync(two.sessions, 78, lambda: wall_ns)
    one.sessions.table.sequence, two.sessions.table.sequence = NOW_NS - 1, wall_ns - 1
    turns = [(one, two, 1), (two, one, 2), (one, two, 1), (two, one, 2)]
    for here, there, worker_id in turns:
        here.sessions.bind(Session("a"), WorkerWithDpRank(worker_id, 0))
        for message in here.sync.messages():
            there.sync.hear(message)
        assert here.worker_of("a") == there.worker_of("a") == (worker_id, 0)
    assert one.sessions.table.counts.outdated == two.sessions.table.counts.outdated == 0


def test_a_binding_to_a_worker_that_left_is_wanted_nowhere() -> None:
    one, two = Site(1, 2), Site(1, 2)
    one.sessions.bind(Session("a"), WorkerWithDpRank(1, 0))
    told = one.sync.messages()
    two.router.remove_worker(1)
    for message in told:
        two.sync.hear(message)
    assert two.worker_of("a") is None
    two.sessions.bind(Session("a"), WorkerWithDpRank(2, 0))
    assert two.worker_of("a") == (2, 0)
    for message in two.sync.messages():
        one.sync.hear(message)
    assert one.worker_of("a") == (2, 0)


def test_a_worker_that_is_not_known_yet_is_wanted_once_it_is() -> None:
    one, two = Site(1), Site()
    one.sessions.bind(Session("a"), WorkerWithDpRank(1, 0))
    for message in one.sync.messages():
        two.sync.hear(message)
    assert two.worker_of("a") is None
    two.router.add_worker(1)
    assert two.worker_of("a") == (1, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": "x" * 1025},
        {"session_id": 5},
        {"worker_id": -1},
        {"dp_rank": 2**32},
        {"sequence": 0},
        {"sequence": 2**63},
        {"sequence": NOW_NS + 25 * 3600 * 10**9},  # ours would be greater still, and refused
        {"writer_id": -1},
    ],
)
def test_nonsense_is_refused(change: dict[str, object]) -> None:
    site = Site(1)
    recorded = base64.b64decode(RECORDED[0]["frames_b64"][3])[FRAME_HEADER:]
    envelope = msgspec.msgpack.decode(recorded)
    envelope["payload"] = msgspec.msgpack.encode({**RECORDED[0]["payload"], **change})
    with pytest.raises(EventError):
        site.sync.hear(msgspec.msgpack.encode(envelope))
    with pytest.raises(EventError):
        site.sync.hear(b"\xc1")
    assert len(site.sessions) == 0
