"""PeerBook: what the other routers have booked, from their messages.

Each router numbers its batches. Those behind a gap are held back until the missing ones came, or
the router's picture did, which it is asked for. So what is counted of a router is what it had
booked at one moment, however messages are lost, repeated or reordered. A router that is silent is
gone, and so are its bookings.

Invariant: what is kept of a router, applied or not, is within MAX_PEER_BYTES, and of all within
MAX_BYTES.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ...base.identity import WorkerWithDpRank
from .messages import HASH_BYTES, Batch, Beat, Booked, Event, Picture, Prefilled

GONE_S = 3.0
"""A router that has sent nothing for this long is gone."""
GAP_S = 0.05
"""How long missing batches may take until the picture is asked for,"""
ASK_S = 0.25
"""and until it is asked for again."""
MAX_AHEAD = 128
"""Batches held back of a router."""
MAX_PEERS = 64
MAX_ENTRIES = 2**22
"""Of all the others together: the sum, over their bookings, of 1 + the blocks of each."""
MAX_BYTES = 128 << 20
"""Of what is kept of all the others together: bookings, batches behind a gap, parts of pictures,"""
MAX_PEER_BYTES = MAX_BYTES // 2
"""and of each."""
EVENT_BYTES = 700
"""Of a booking without its id and blocks, with its places in the tables that count it."""
ID_COPIES = 3


_OWNER = re.compile("[0-9a-f]+")


class PeerSink(Protocol):
    """Counts the load of other routers. A key names a booking of one of them."""

    def book(self, key: str, booking: Booked) -> None: ...

    def complete_prefill(self, key: str, cached_tokens: int) -> None: ...

    def release(self, key: str, output_tokens: int) -> None: ...

    def gone(self, owner: str) -> None:
        """All that it has booked, whose keys begin with OWNER/, is released next."""


@dataclass(slots=True)
class PeerCounts:
    """Since the book was made; they only grow."""

    batches: int = 0
    """applied"""
    duplicates: int = 0
    """batches that had been applied, or were in a picture"""
    gaps: int = 0
    pictures: int = 0
    """applied"""
    gone: int = 0
    """routers that fell silent"""
    refused: int = 0
    """bookings, and messages of routers, for which there was no room"""


class _Peer:
    """What is known of one router."""

    def __init__(self, router_id: int, now: float) -> None:
        self.mark = f"{router_id:x}/"
        self.settled_at = float("-inf")  # when all that it had sent was last known to be here
        self.name = ""
        self.last_message_at = now
        self.following: int | None = None  # the next batch; None: its picture is awaited
        self.ahead: dict[int, list[Event]] = {}
        self.bookings: dict[str, Booked] = {}
        self.prefilled: set[str] = set()  # of those, that were not when they were booked
        self.missing_since: float | None = now
        self.asked_at = float("-inf")
        self.drawn = -1  # `following` of the picture whose chunks are here
        self.chunks: dict[int, list[Booked]] = {}
        self.bytes = 0  # of bookings, `ahead` and `chunks`


class PeerBook:
    """The bookings of the others, passed to a sink as they change. `own_id` is ignored."""

    def __init__(
        self,
        own_id: int,
        sink: PeerSink,
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        max_peer_bytes: int = MAX_PEER_BYTES,
    ) -> None:
        self.own_id, self._sink, self._max_entries = own_id, sink, max_entries
        self._max_bytes, self._max_peer_bytes = max_bytes, max_peer_bytes
        self._peers: dict[int, _Peer] = {}
        self._entries = 0
        self.bytes = 0
        """of what is kept of all the others, estimated"""
        self.counts = PeerCounts()

    def __len__(self) -> int:
        return sum(len(peer.bookings) for peer in self._peers.values())

    def present(self) -> dict[int, str]:
        """The name of each router that is there, by id."""
        return {router_id: peer.name for router_id, peer in self._peers.items()}

    def settled_at(self, owner: str) -> float:
        """When all that a router had sent, whose keys begin with OWNER/, was last known to be here;
        -inf if it is not there."""
        peer = self._peers.get(int(owner, 16)) if _OWNER.fullmatch(owner) else None
        return float("-inf") if peer is None else peer.settled_at

    def booking(self, key: str) -> Booked | None:
        """What is booked under a key, as it is by now; None: nothing."""
        owner, _, request_id = key.partition("/")
        peer = self._peers.get(int(owner, 16)) if _OWNER.fullmatch(owner) else None
        booking = None if peer is None else peer.bookings.get(request_id)
        if peer is None or booking is None or request_id not in peer.prefilled:
            return booking
        return booking.after_prefill()

    def bookings_on(self, worker: WorkerWithDpRank) -> list[tuple[str, Booked]]:
        """(key, booking) of all that is booked on a worker."""
        return [
            (
                peer.mark + request_id,
                booking.after_prefill() if request_id in peer.prefilled else booking,
            )
            for peer in self._peers.values()
            for request_id, booking in peer.bookings.items()
            if (booking.worker_id, booking.dp_rank) == worker
        ]

    def keys(self) -> list[str]:
        """Of all bookings."""
        return [peer.mark + name for peer in self._peers.values() for name in peer.bookings]

    def on_batch(self, batch: Batch, now: float) -> None:
        peer = self._sender(batch.router_id, now)
        if peer is None:
            return
        sequence = batch.sequence
        if peer.following is not None and sequence < peer.following:
            self.counts.duplicates += 1
        elif sequence == peer.following:
            self._apply(peer, batch.events)
            self._drain(peer)
        else:
            self._miss(peer, now)
            if sequence in peer.ahead or not self._keep(peer, sum(map(bytes_of, batch.events))):
                return
            peer.ahead[sequence] = batch.events
            if len(peer.ahead) > MAX_AHEAD:
                self._take_ahead(peer, min(peer.ahead))

    def on_beat(self, beat: Beat, now: float) -> None:
        if beat.leaving:
            self._forget(beat.router_id)
            return
        peer = self._peers.get(beat.router_id)
        if peer is not None and (peer.following or 0) > beat.following + MAX_AHEAD:
            self._forget(beat.router_id)  # a number that it did not give has moved us ahead of it
        peer = self._sender(beat.router_id, now)
        if peer is not None:
            peer.name = beat.name
            if peer.following is None or beat.following > peer.following:
                self._miss(peer, now)
            elif peer.missing_since is None:
                peer.settled_at = now

    def on_picture(self, picture: Picture, now: float) -> None:
        peer = self._sender(picture.router_id, now)
        if peer is None or peer.missing_since is None:
            return
        if peer.following is not None and picture.following <= peer.following:
            return
        if peer.drawn != picture.following:
            if picture.following < peer.drawn:
                return
            self._drop_chunks(peer)
            peer.drawn = picture.following
        if picture.chunk not in peer.chunks:
            if not self._keep(peer, sum(map(bytes_of, picture.bookings))):
                self._drop_chunks(peer)
                return
            peer.chunks[picture.chunk] = picture.bookings
        if len(peer.chunks) == picture.chunks > max(peer.chunks):
            self._redraw(peer, [peer.chunks[chunk] for chunk in range(picture.chunks)])

    def tick(self, now: float) -> list[int]:
        """Forget who is silent; the ids of those whose pictures are to be asked for."""
        wanted = []
        for router_id, peer in list(self._peers.items()):
            if now - peer.last_message_at >= GONE_S:
                self.counts.gone += 1
                self._forget(router_id)
            elif peer.missing_since is not None and now - peer.asked_at >= ASK_S:
                if peer.following is None or now - peer.missing_since >= GAP_S:
                    peer.asked_at = now
                    wanted.append(router_id)
        return wanted

    def clear(self) -> None:
        """Forget all."""
        for router_id in list(self._peers):
            self._forget(router_id)

    def forget_named(self, name: str) -> None:
        """The routers of this name have ended."""
        for router_id in [known for known, peer in self._peers.items() if peer.name == name]:
            self._forget(router_id)

    def _sender(self, router_id: int, now: float) -> _Peer | None:
        if router_id == self.own_id:
            return None
        peer = self._peers.get(router_id)
        if peer is None:
            if len(self._peers) >= MAX_PEERS:
                self.counts.refused += 1
                return None
            peer = self._peers[router_id] = _Peer(router_id, now)
        peer.last_message_at = now
        return peer

    def _miss(self, peer: _Peer, now: float) -> None:
        if peer.missing_since is None:
            self.counts.gaps += 1
            peer.missing_since = now

    def _drain(self, peer: _Peer) -> None:
        """Apply what had to wait; `following` was just moved on."""
        assert peer.following is not None
        while (events := self._take_ahead(peer, peer.following)) is not None:
            self._apply(peer, events)
        if not peer.ahead:
            # Batches that a beat has announced may still be missing: the next one names them.
            peer.missing_since = None

    def _apply(self, peer: _Peer, events: Iterable[Event]) -> None:
        assert peer.following is not None
        peer.following += 1
        self.counts.batches += 1
        for event in events:
            if type(event) is Booked:  # isinstance asks an abstract class, each time
                self._book(peer, event)
            elif type(event) is Prefilled:
                self._complete(peer, event.request_id, event.cached_tokens)
            else:
                self._release(peer, event.request_id, event.output_tokens)

    def _redraw(self, peer: _Peer, chunks: list[list[Booked]]) -> None:
        """Make the peer's bookings those of its picture, whose chunks are all there."""
        self.counts.pictures += 1
        following = peer.drawn
        self._drop_chunks(peer)
        drawn = {booking.request_id: booking for some in chunks for booking in some}
        for request_id in [name for name in peer.bookings if name not in drawn]:
            self._release(peer, request_id)
        for booking in drawn.values():
            known = peer.bookings.get(booking.request_id)
            if known is not None and booking.request_id in peer.prefilled:
                known = known.after_prefill()
            if known is None or _differ(known, booking):
                self._book(peer, booking)
            elif booking.prefilled:
                self._complete(peer, booking.request_id)
        peer.following = following
        for sequence in [number for number in peer.ahead if number < following]:
            self._take_ahead(peer, sequence)
        self._drain(peer)

    def _book(self, peer: _Peer, booking: Booked) -> None:
        request_id = booking.request_id
        if request_id in peer.bookings:  # another attempt of the same request
            self._release(peer, request_id)
        entries = _entries(booking)
        if self._entries + entries > self._max_entries:
            self.counts.refused += 1
            return
        if not self._keep(peer, bytes_of(booking)):
            return
        self._entries += entries
        peer.bookings[request_id] = booking
        self._sink.book(peer.mark + request_id, booking)

    def _complete(self, peer: _Peer, request_id: str, cached_tokens: int = -1) -> None:
        booking = peer.bookings.get(request_id)
        if booking is not None and not booking.prefilled and request_id not in peer.prefilled:
            peer.prefilled.add(request_id)
            self._sink.complete_prefill(peer.mark + request_id, cached_tokens)

    def _release(self, peer: _Peer, request_id: str, output_tokens: int = 0) -> None:
        booking = peer.bookings.pop(request_id, None)
        if booking is not None:
            peer.prefilled.discard(request_id)
            self._entries -= _entries(booking)
            self._give_back(peer, bytes_of(booking))
            self._sink.release(peer.mark + request_id, output_tokens)

    def _forget(self, router_id: int) -> None:
        peer = self._peers.pop(router_id, None)
        if peer is not None:
            self._sink.gone(peer.mark[:-1])
            for request_id in list(peer.bookings):
                self._release(peer, request_id)
            self._give_back(peer, peer.bytes)

    def _keep(self, peer: _Peer, size: int) -> bool:
        """Count what is to be kept of a peer; False where there is no room."""
        if peer.bytes + size > self._max_peer_bytes or self.bytes + size > self._max_bytes:
            self.counts.refused += 1
            return False
        peer.bytes += size
        self.bytes += size
        return True

    def _give_back(self, peer: _Peer, size: int) -> None:
        peer.bytes -= size
        self.bytes -= size

    def _take_ahead(self, peer: _Peer, sequence: int) -> list[Event] | None:
        events = peer.ahead.pop(sequence, None)
        if events is not None:
            self._give_back(peer, sum(map(bytes_of, events)))
        return events

    def _drop_chunks(self, peer: _Peer) -> None:
        for some in peer.chunks.values():
            self._give_back(peer, sum(map(bytes_of, some)))
        peer.chunks, peer.drawn = {}, -1


def bytes_of(event: Event) -> int:
    """What an event costs where it is kept, estimated."""
    blocks = len(event.hashes) if type(event) is Booked else 0
    return EVENT_BYTES + ID_COPIES * len(event.request_id) + blocks


def _entries(booking: Booked) -> int:
    return 1 + len(booking.hashes) // HASH_BYTES


def _differ(earlier: Booked, later: Booked) -> bool:
    """Whether they are of two attempts of a request, not of two moments of one."""
    again = earlier.prefilled and not later.prefilled
    return again or earlier.after_prefill() != later.after_prefill()
