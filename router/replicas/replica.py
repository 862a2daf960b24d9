"""Replica: one router among others in front of the same workers, as messages in and out. No I/O."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...slots.peers import Ask, Batch, Beat, Booked, Message, OwnBookings, PeerBook, Picture
from .peer_load import PeerLoad

BEAT_S = 0.25
"""How often a router says that it is there,"""
PICTURE_S = 0.1
"""and draws its picture at most, however many ask."""
TOUCH_S = 1.0
MAX_NAMESAKES = 64


class Replica:
    """What this router has booked goes out, and what the others have comes in.

    It is the listener of the router's SlotTable, for bookings of any caller, from any thread.
    """

    def __init__(
        self,
        load: PeerLoad,
        router_id: int,
        name: str = "",
        *,
        on_namesake: Callable[[Beat], None] = lambda beat: None,
        on_pending: Callable[[], None] = lambda: None,
        on_load_fell: Callable[[], None] = lambda: None,
    ) -> None:
        """`router_id` is random, below 2**53 and not 0; `name` is for people. `on_namesake` is
        called with the first beat of each other router that has the same name, `on_pending` under
        the lock when there is something to send to the others, `on_load_fell` by `tick` when
        claims of others were refuted."""
        self._on_namesake = on_namesake
        self._load = load
        self._on_pending, self._on_load_fell = on_pending, on_load_fell
        self.own = OwnBookings(router_id, name)
        self.peers = PeerBook(router_id, load)
        self.evidence = load.evidence
        self._beat_at = self._drawn_at = self._touched_at = float("-inf")
        self._asked = False
        self._namesakes: set[int] = set()
        load.connect(self, self.peers)

    def close(self) -> list[Message]:
        """Stop counting the others; the messages say that this router leaves."""
        with self._load.lock:
            self._load.disconnect()
            self.peers.clear()
            return [self.own.beat(leaving=True)]

    # What this router does

    def on_booked(
        self,
        request_id: str,
        number: int,
        seq_hashes: npt.NDArray[np.uint64] | None,
        isl: int,
        prefill_tokens: int,
        expected_output_tokens: int | None,
    ) -> None:
        """See BookingListener; so are the two below."""
        worker = self._load.registry.worker(number)
        self._load.on_own_request(request_id, number)
        self.own.on_booked(
            Booked(
                request_id,
                worker.worker_id,
                worker.dp_rank,
                b"" if seq_hashes is None else seq_hashes.tobytes(),
                isl,
                prefill_tokens,
                expected_output_tokens or 0,
            )
        )
        self._on_pending()

    def on_prefilled(self, request_id: str, cached_tokens: int | None) -> None:
        self.own.on_prefilled(request_id, cached_tokens)
        self._on_pending()

    def on_ended(self, request_id: str, output_tokens: int | None) -> None:
        self._load.on_own_ended(request_id)
        self.own.on_ended(request_id, output_tokens)
        self._on_pending()

    def batches(self) -> list[Batch]:
        """The batches to send of that."""
        with self._load.lock:
            return self.own.take()

    # What the others say

    def hear(self, message: Message, now: float) -> bool:
        """Take a message in. Whether load may have fallen by it."""
        if message.router_id == self.own.router_id:
            return False
        with self._load.lock:
            if isinstance(message, Batch):
                self.peers.on_batch(message, now)
            elif isinstance(message, Picture):
                self.peers.on_picture(message, now)
            elif isinstance(message, Beat):
                self.peers.on_beat(message, now)
                self._notice_name(message)
            elif message.wanted in (0, self.own.router_id):
                self._asked = True
        return isinstance(message, Batch | Picture)

    def forget(self, name: str) -> None:
        """The router of this name has ended."""
        with self._load.lock:
            self.peers.forget_named(name)

    # When time has passed, and when the way to the others is there or not

    def tick(self, now: float) -> list[Message]:
        """Messages to send by now; to be asked every 50 ms or so."""
        messages: list[Message] = []
        with self._load.lock:
            messages += [Ask(self.own.router_id, wanted) for wanted in self.peers.tick(now)]
            fell = self._load.judge()
            if self._asked and now - self._drawn_at >= PICTURE_S:
                messages += self._draw(now)
            if now - self._beat_at >= BEAT_S:
                self._beat_at = now
                messages += [*self.own.take(), self.own.beat()]
            if now - self._touched_at >= TOUCH_S:
                self._touched_at = now
                self._load.touch(now)
        if fell:
            self._on_load_fell()
        return messages

    def on_connected(self, now: float) -> list[Message]:
        """The others can be reached, perhaps again: what they should know, and the wish to know."""
        with self._load.lock:
            self._beat_at = now
            return [Ask(self.own.router_id), *self._draw(now), self.own.beat()]

    def on_disconnected(self) -> None:
        """No other router can be reached."""
        with self._load.lock:
            self.own.drop_pending()

    def _draw(self, now: float) -> list[Message]:
        self._asked, self._drawn_at = False, now
        return [*self.own.take(), *self.own.picture()]

    def _notice_name(self, beat: Beat) -> None:
        if beat.name and beat.name == self.own.name and beat.router_id not in self._namesakes:
            if len(self._namesakes) < MAX_NAMESAKES:
                self._namesakes.add(beat.router_id)
                self._on_namesake(beat)
