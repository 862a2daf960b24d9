"""What is counted of another router, case by case; test_replicas_machine.py has the laws."""

import pytest

from dynamo_router.base.errors import EventError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.slots.peers import (
    MAX_ID,
    Batch,
    Beat,
    Booked,
    Ended,
    Event,
    Message,
    OwnBookings,
    PeerBook,
    Picture,
    Prefilled,
    decode_message,
    encode_message,
)
from dynamo_router.slots.peers import own_bookings as own_module
from dynamo_router.slots.peers.peer_book import ASK_S, GAP_S, GONE_S, MAX_AHEAD, MAX_PEERS


class Told:
    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []

    def book(self, key: str, booking: Booked) -> None:
        self.heard.append((key, booking.worker_id))

    def complete_prefill(self, key: str, cached_tokens: int) -> None:
        self.heard.append((key, f"prefilled {cached_tokens}"))

    def release(self, key: str, output_tokens: int) -> None:
        self.heard.append((key, f"ended {output_tokens}"))

    def gone(self, owner: str) -> None:
        pass

    def take(self) -> list[tuple[str, object]]:
        heard, self.heard = self.heard, []
        return heard


def booked(request_id: str, worker_id: int = 1, blocks: int = 0, prefilled: bool = False) -> Booked:
    return Booked(request_id, worker_id, 0, bytes(8 * blocks), 64, 64, 0, prefilled)


def book_of(*batches: list[Event], max_entries: int = 100) -> tuple[PeerBook, Told]:
    told = Told()
    peers = PeerBook(1, told, max_entries=max_entries)
    peers.on_beat(Beat(2, "two", 0), 0.0)
    peers.on_picture(Picture(2, 0, 0, 1, []), 0.0)
    for sequence, events in enumerate(batches):
        peers.on_batch(Batch(2, sequence, events), 0.0)
    return peers, told


def test_events_come_through_with_what_they_say() -> None:
    _, told = book_of([booked("a"), Prefilled("a", 32), Prefilled("a", 9), Ended("a", 7)])
    assert told.take() == [("2/a", 1), ("2/a", "prefilled 32"), ("2/a", "ended 7")]


def test_events_of_requests_that_are_not_known_are_ignored() -> None:
    _, told = book_of([Prefilled("a"), Ended("a"), Ended("b")])
    assert told.take() == []


def test_a_picture_moves_a_request_that_was_tried_elsewhere_meanwhile() -> None:
    peers, told = book_of([booked("a", 1), booked("b", 1)])
    told.take()
    peers.on_batch(Batch(2, 2, []), 1.0)  # behind a gap
    assert peers.tick(1.0) == [] and peers.tick(1.0 + GAP_S) == [2]
    drawn = [booked("a", 5), booked("b", 1, prefilled=True)]
    peers.on_picture(Picture(2, 2, 0, 1, drawn), 1.1)
    assert told.take() == [("2/a", "ended 0"), ("2/a", 5), ("2/b", "prefilled -1")]
    assert peers.tick(1.2) == [] and peers.counts.gaps == 1


def test_a_picture_shows_a_request_that_was_tried_again_where_it_was() -> None:
    peers, told = book_of([booked("a"), Prefilled("a"), booked("b")])
    told.take()
    peers.on_batch(Batch(2, 2, []), 1.0)  # behind a gap
    peers.on_picture(Picture(2, 2, 0, 1, [booked("a"), booked("b")]), 1.1)
    assert told.take() == [("2/a", "ended 0"), ("2/a", 1)]
    assert peers.bookings_on(WorkerWithDpRank(1)) == [("2/b", booked("b")), ("2/a", booked("a"))]


def test_chunks_of_two_pictures_are_not_mixed() -> None:
    told = Told()
    peers = PeerBook(1, told)
    peers.on_picture(Picture(2, 4, 0, 2, [booked("old")]), 0.0)
    peers.on_picture(Picture(2, 6, 1, 2, [booked("b")]), 0.0)
    peers.on_picture(Picture(2, 4, 1, 2, [booked("older")]), 0.0)
    assert told.take() == []
    peers.on_picture(Picture(2, 6, 0, 2, [booked("a")]), 0.0)
    assert told.take() == [("2/a", 1), ("2/b", 1)]
    peers.on_batch(Batch(2, 6, [Ended("a", 1)]), 0.0)
    assert told.take() == [("2/a", "ended 1")]


def test_a_picture_whose_chunks_disagree_is_none() -> None:
    told = Told()
    peers = PeerBook(1, told)
    peers.on_picture(Picture(2, 4, 3, 4, [booked("far")]), 0.0)
    peers.on_picture(Picture(2, 4, 0, 2, [booked("a")]), 0.0)
    assert told.take() == []
    peers.on_picture(Picture(2, 6, 0, 1, [booked("b")]), 0.0)
    assert told.take() == [("2/b", 1)]


def test_a_picture_is_asked_for_now_and_then_until_it_comes() -> None:
    peers = PeerBook(1, Told())
    peers.on_beat(Beat(2, "", 9), 0.0)
    asked = [now for now in (step / 20 for step in range(21)) if peers.tick(now)]
    assert len(asked) == 1 + int(1 / ASK_S)


def test_a_lost_last_batch_shows_by_the_beat() -> None:
    peers, _ = book_of([booked("a")])
    peers.on_beat(Beat(2, "", 2), 1.0)
    assert peers.tick(1.0 + GAP_S) == [2]


def test_silent_and_leaving_routers_are_forgotten() -> None:
    peers, told = book_of([booked("a")])
    told.take()
    assert peers.present() == {2: "two"}
    peers.tick(GONE_S - 0.01)
    assert told.take() == []
    peers.tick(GONE_S)
    assert told.take() == [("2/a", "ended 0")] and peers.present() == {} and len(peers) == 0
    peers, told = book_of([booked("a")])
    peers.on_beat(Beat(2, "two", 1, leaving=True), 0.1)
    assert told.take()[-1] == ("2/a", "ended 0")


def test_own_messages_are_ignored() -> None:
    peers = PeerBook(1, Told())
    for message in (Beat(1, "", 5),):
        peers.on_beat(message, 0.0)
    peers.on_batch(Batch(1, 0, [booked("a")]), 0.0)
    peers.on_picture(Picture(1, 1, 0, 1, [booked("a")]), 0.0)
    assert peers.present() == {} and len(peers) == 0


def test_room_is_bounded_and_given_back() -> None:
    peers, told = book_of([booked("a", blocks=8), booked("b", blocks=4)], max_entries=10)
    assert told.take() == [("2/a", 1)] and peers.counts.refused == 1
    peers.on_batch(Batch(2, 1, [Ended("a"), booked("c", blocks=9)]), 0.0)
    assert told.take() == [("2/a", "ended 0"), ("2/c", 1)]
    peers.on_batch(Batch(2, 3, []), 0.0)
    peers.on_picture(Picture(2, 4, 0, 1, [booked("d", blocks=10)]), 0.0)
    assert peers.counts.refused == 2 and len(peers) == 0
    for router_id in range(3, MAX_PEERS + 5):
        peers.on_beat(Beat(router_id, "", 0), 0.0)
    assert len(peers.present()) == MAX_PEERS


def test_what_waits_behind_a_gap_is_bounded() -> None:
    peers, told = book_of()
    for sequence in range(1, MAX_AHEAD + 3):
        peers.on_batch(Batch(2, sequence, [booked(str(sequence))]), 0.0)
    peers.on_batch(Batch(2, 0, [booked("0")]), 0.0)
    assert told.take() == [("2/0", 1)]  # batches 1 and 2 were dropped
    assert peers.tick(1.0) == [2]


def test_bookings_by_worker() -> None:
    peers, _ = book_of([booked("a", 1), booked("b", 7)])
    assert peers.bookings_on(WorkerWithDpRank(7, 0)) == [("2/b", booked("b", 7))]
    assert peers.keys() == ["2/a", "2/b"]


def test_pictures_and_batches_are_cut_to_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_module, "MAX_BYTES", 64)
    own = OwnBookings(2)
    for name in "abc":
        own.on_booked(booked(name, blocks=5))
    assert [len(batch.events) for batch in own.take()] == [1, 1, 1]
    assert [(one.chunk, one.chunks, one.following) for one in own.picture()] == [
        (0, 3, 3),
        (1, 3, 3),
        (2, 3, 3),
    ]
    monkeypatch.setattr(own_module, "MAX_PENDING", 2)
    for _ in range(4):
        own.on_prefilled("a", None)
        own.on_ended("b", 1)
        own.on_ended("c", 1)
    assert own.dropped == 2 and own.following == 4 and len(own) == 1


@pytest.mark.parametrize(
    "message",
    [
        Batch(-1, 0, []),
        Batch(1, -1, []),
        Batch(1, 0, [Booked("a", 1, 0, b"1234567", 64, 64)]),
        Batch(1, 0, [Booked("a", 1, 0, b"", 0, 0)]),
        Batch(1, 0, [Booked("a", 1, 0, b"", 64, 65)]),
        Batch(1, 0, [Booked("a", 1, 0, b"", 2**33, 1)]),
        Batch(1, 0, [Booked("a", -1, 0, b"", 64, 64)]),
        Batch(1, 0, [Booked("a", 1, 2**32, b"", 64, 64)]),
        Batch(1, 0, [Booked("a", 1, 0, b"", 64, 64, -1)]),
        Picture(1, 0, 1, 1, []),
        Picture(1, 0, 0, 10**6, []),
        Picture(1, 0, 0, 1, [Booked("a", 1, 0, b"", 64, -1)]),
        Beat(1, "", -1),
    ],
)
def test_impossible_messages_are_refused(message: Batch | Beat | Picture) -> None:
    with pytest.raises(EventError):
        decode_message(encode_message(message))


@pytest.mark.parametrize("data", [b"", b"\x93", b"\xff", encode_message([1, 2]), b"\x92\xa1a\xc1"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(EventError):
        decode_message(data)


SMALL = {"max_bytes": 200_000, "max_peer_bytes": 100_000}


def flooded(peers: PeerBook, kind: str, router_id: int) -> None:
    for number in range(200):
        some: list[Event] = [booked(f"{number}-{n}".ljust(500, "x"), blocks=4) for n in range(8)]
        if kind == "pictures":
            peers.on_picture(Picture(router_id, 5, number, 4096, some), 0.0)  # type: ignore[arg-type]
        elif kind == "gaps":
            peers.on_batch(Batch(router_id, 5 + number, some), 0.0)
        elif kind == "ends":
            ends: list[Event] = [Ended(event.request_id) for event in some]
            peers.on_batch(Batch(router_id, 5 + number, ends), 0.0)
        else:
            if not number:
                peers.on_picture(Picture(router_id, 0, 0, 1, []), 0.0)
            peers.on_batch(Batch(router_id, number, some), 0.0)


@pytest.mark.parametrize("kind", ["pictures", "gaps", "ends", "bookings"])
def test_bytes_are_bounded_of_each_router_and_of_all_and_are_given_back(kind: str) -> None:
    peers = PeerBook(1, Told(), **SMALL)
    for router_id in (2, 3, 4):
        flooded(peers, kind, router_id)
        if router_id == 2:
            assert 0 < peers.bytes <= 100_000
        assert peers.bytes <= 200_000
    assert peers.counts.refused
    peers.tick(GONE_S)
    assert peers.bytes == 0 and len(peers) == 0


@pytest.mark.parametrize(
    "message",
    [
        Batch(2, 0, [booked("x" * (MAX_ID + 1))]),
        Batch(2, 0, [Prefilled("x" * (MAX_ID + 1))]),
        Batch(2, 0, [Ended("x" * (MAX_ID + 1))]),
        Batch(2, 0, [booked(str(n)) for n in range(257)]),
        Picture(2, 0, 0, 1, [booked("x" * (MAX_ID + 1))]),
        Picture(2, 0, 0, 1, [booked(str(n)) for n in range(257)]),
        Beat(2, "x" * 257, 0),
    ],
)
def test_messages_with_too_long_ids_names_or_lists_are_refused(message: Message) -> None:
    with pytest.raises(EventError):
        decode_message(encode_message(message))


def test_own_ids_that_are_too_long_are_sent_as_what_fits() -> None:
    own = OwnBookings(1, "n" * 300)
    long = "x" * 5000
    own.on_booked(booked(long))
    own.on_prefilled(long, 3)
    own.on_ended(long, 1)
    (batch,) = own.take()
    assert decode_message(encode_message(batch)) == batch and len(own) == 0
    assert {len(event.request_id) for event in batch.events} == {64} and len(batch.events) == 3
    assert decode_message(encode_message(own.beat())) == own.beat()


def test_a_router_whose_numbers_another_one_has_moved_ahead_is_heard_again() -> None:
    peers, told = book_of([booked("a")])
    peers.on_batch(Batch(2, 5, []), 0.0)  # whoever sends under its id makes a hole,
    peers.on_picture(Picture(2, 2**60, 0, 1, [booked("false")]), 0.1)  # and fills it
    told.take()
    peers.on_beat(Beat(2, "two", 1), 0.2)
    assert told.take() == [("2/false", "ended 0")] and peers.tick(0.2) == [2]
    peers.on_picture(Picture(2, 1, 0, 1, [booked("a")]), 0.3)
    assert told.take() == [("2/a", 1)]


def test_a_router_that_begins_anew_under_its_id_is_heard() -> None:
    peers, told = book_of(*([booked(str(n))] for n in range(MAX_AHEAD + 2)), max_entries=1000)
    told.take()
    peers.on_beat(Beat(2, "two", 0), 0.2)
    assert len(peers) == 0 and peers.tick(0.2) == [2]
