"""RemoteDecisions: a front's dispatcher asks the decider, and decides by loads while it is away."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...base.clock import Clock
from ...base.identity import WorkerWithDpRank
from ...router.policy import Decision
from ...router.prompt import Prompt
from ...workers.health import HealthMonitor
from ...workers.registry import WorkerRegistry
from ..dispatch import Bookings, Flight
from .link import DeciderAwayError, DeciderLink
from .load_picture import LoadPicture
from .messages import (
    Ask,
    Booked,
    Decided,
    Freed,
    Loads,
    Output,
    Prefilled,
    Welcome,
    check_content,
)


@dataclass(slots=True)
class _Booking:
    """What the decider is told of a request when it comes back."""

    ask: Ask
    worker: WorkerWithDpRank
    prefilled: bool = False
    output_tokens: int = 0


class RemoteDecisions:
    """Implements Decisions and its Bookings: chosen and booked by the decider behind `link`.

    Invariant: whatever is booked there for a flight is in `booked` here until it is freed, so that
    a decider that comes back is told all of it. `fallbacks` counts decisions made without it.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        monitor: HealthMonitor,
        clock: Clock,
        picture: LoadPicture,
        block_size: int,
    ) -> None:
        self._block_size = block_size
        self._out_of_order: list[int] = []
        self._registry = registry
        self._monitor = monitor
        self._now = clock.now
        self._picture = picture
        self._link: DeciderLink | None = None
        self._waiting: dict[str, tuple[Ask, asyncio.Future[Decided]]] = {}
        self._booked: dict[str, _Booking] = {}
        self.fallbacks = 0

    def attach(self, link: DeciderLink) -> None:
        """Ask over this connection."""
        self._link = link
        link.on_loads = self._on_loads
        link.on_ready.append(self._on_ready)

    def told_anew(self) -> Iterable[Booked]:
        """All that is booked, for a decider that knows nothing of it."""
        for each in self._booked.values():
            yield Booked(each.ask, each.worker, each.prefilled, each.output_tokens)

    # Decisions

    @property
    def bookings(self) -> Bookings:
        return self

    def at_once(self, flight: Flight, *, again: bool) -> Decision | None:
        if self._link is not None and self._link.is_ready:
            return None
        flight.booking_id = flight.request_id
        return self._taken(flight, self._fall_back(self._question(flight, again=again)))

    async def in_turn(self, flight: Flight, *, again: bool) -> Decision:
        flight.booking_id = flight.request_id
        began = self._now()
        if not len(flight.attempts):
            flight.queue_s = began - flight.arrived
        decision, waited_s = await self._decided(self._question(flight, again=again))
        if not len(flight.attempts):
            flight.queue_s += waited_s
        flight.decision_s = max(0.0, self._now() - began - waited_s)
        if flight.aborted:  # between the answer and our turn: nobody waited who could be told
            self.free(flight.booking_id)
        flight.check_aborted()
        return self._taken(flight, decision)

    async def second(self, twin: Flight) -> Decision:
        question = self._question(twin, again=True)
        question.beside = True
        return (await self._decided(question))[0]

    def is_open(self, tenant: str) -> bool:
        return not self._waiting

    def give_up(self, request_id: str, error: Exception) -> bool:
        ask, future = self._waiting.get(request_id, (None, None))
        if ask is None or future is None or future.done():
            return False
        if self._link is not None:
            self._link.give_up(ask)
        future.set_exception(error)
        return True

    def load_fell(self) -> None:
        """The decider sees for itself."""

    # Bookings

    def mark_prefill_complete(self, request_id: str, *, cached_tokens: int | None = None) -> None:
        self._prefilled(Prefilled(request_id, True, cached_tokens))

    def release_prefill(self, request_id: str) -> None:
        self._prefilled(Prefilled(request_id, False))

    def add_output_tokens(self, request_id: str, generated: int) -> None:
        booking = self._booked.get(request_id)
        if booking is not None:
            booking.output_tokens = generated
            self._note(Output(request_id, generated))

    def touch_all(self, request_ids: Iterable[str]) -> None:
        """They are alive as long as our connection is."""

    def free(self, request_id: str, *, output_tokens: int | None = None) -> None:
        booking = self._booked.pop(request_id, None)
        if booking is not None:
            self._picture.on_ended(booking.worker)
            self._note(Freed(request_id, output_tokens))

    def _prefilled(self, message: Prefilled) -> None:
        booking = self._booked.get(message.booking_id)
        if booking is not None:
            booking.prefilled = True
            self._note(message)

    def _tell(self, message: object) -> None:
        if self._link is not None:
            self._link.tell(message)

    def _note(self, message: object) -> None:
        """A load changes: told within milliseconds, at once if somebody waits for it."""
        if self._link is not None:
            (self._link.tell if self._waiting else self._link.note)(message)

    # Asking

    def _question(self, flight: Flight, *, again: bool) -> Ask:
        facts, link = flight.facts, self._link
        local = sequence = b""
        if link is not None and link.hashes:
            local, sequence = hashes_of(facts.prompt)
            check_content(len(local) + len(sequence))
        excluded = (
            flight.unfit | flight.attempts.worker_ids if len(flight.attempts) else flight.unfit
        )
        return Ask(
            0 if link is None else link.next_serial(),
            flight.booking_id,
            facts.prompt.isl,
            local,
            sequence,
            [*excluded, *self._out_of_order] if flight.pinned is None else [*excluded],
            flight.pinned,
            flight.urgency.priority,
            flight.urgency.jump,
            facts.max_tokens,
            self._now() - flight.arrived,
            again,
            tenant=flight.tenant,
            ttft_ms=flight.objectives.ttft_ms,
        )

    async def _decided(self, ask: Ask) -> tuple[Decision, float]:
        """What the decider says, and how long it let the request wait."""
        link = self._link
        while link is not None and link.is_ready:
            future = link.ask(ask)
            self._waiting[ask.booking_id] = ask, future
            try:
                said = await future
            except DeciderAwayError:
                break
            except asyncio.CancelledError:
                link.give_up(ask)
                if future.done() and not future.cancelled() and future.exception() is None:
                    link.tell(Freed(ask.booking_id))  # it was booked in the same moment
                raise
            finally:
                self._waiting.pop(ask.booking_id, None)
            worker = WorkerWithDpRank(said.worker_id, said.dp_rank)
            if self._monitor.client(worker.worker_id) is not None:
                if said.booked:
                    self._booked[ask.booking_id] = _Booking(ask, worker)
                    self._picture.on_sent(worker)
                booking_id = ask.booking_id if said.booked else None
                return _decision(said, worker, booking_id), said.waited_s
            # It is new, and we have not heard of it.
            link.tell(Freed(ask.booking_id))
            ask.excluded.append(worker.worker_id)
            ask.serial = link.next_serial()
        return self._fall_back(ask), 0.0

    def _fall_back(self, ask: Ask) -> Decision:
        """The least loaded worker, by the loads known last."""
        eligible = self._registry.eligible(self._now())
        ready = {
            rank: entry.weight
            for entry in self._registry.entries()
            for rank, number in zip(entry.ranks, entry.numbers, strict=True)
            if eligible[number]
        }
        pinned = None if ask.pinned is None else WorkerWithDpRank(*ask.pinned)
        worker = self._picture.choose(ready, excluded=ask.excluded, pinned=pinned)
        self.fallbacks += 1
        self._booked[ask.booking_id] = _Booking(ask, worker)
        self._picture.on_sent(worker)
        self._tell(Booked(ask, worker, False, 0))
        blocks = -(-ask.isl // self._block_size)
        number = self._registry.number(worker)
        return Decision(worker, number, 0, blocks, 0, ask.booking_id)

    def _taken(self, flight: Flight, decision: Decision) -> Decision:
        flight.decision = decision
        flight.trace.decided(flight)
        return decision

    # What is heard

    def look(self) -> None:
        """See which workers are out of order, as far as this front knows: the decider is not to
        choose them. Not if that is all of them."""
        eligible = self._registry.eligible(self._now())
        entries = self._registry.entries()
        out = [e.worker_id for e in entries if not any(eligible[n] for n in e.numbers)]
        self._out_of_order = out if len(out) < len(entries) else []

    def _on_loads(self, message: Loads) -> None:
        self._picture.tell(message.loads)

    def _on_ready(self, welcome: Welcome) -> None:
        self._picture.fronts = welcome.fronts


def _decision(said: Decided, worker: WorkerWithDpRank, booking_id: str | None) -> Decision:
    return Decision(
        worker,
        said.number,
        said.overlap_blocks,
        said.request_blocks,
        said.cached_tokens,
        booking_id,
        said.host_overlap_blocks,
        said.disk_overlap_blocks,
    )


def hashes_of(prompt: Prompt) -> tuple[bytes, bytes]:
    """Its local and sequence hashes as a message has them; InvalidRequestError as Prompt has it."""
    return prompt.hashed().local_hashes.tobytes(), prompt.sequence_hashes.tobytes()


def prompt_told(ask: Ask, block_size: int) -> Prompt:
    """The prompt of a question. ValueError if its hashes do not fit its length."""
    if ask.isl < 1:
        raise ValueError(f"a prompt of {ask.isl} tokens")
    if not ask.local_hashes:
        return Prompt(range(ask.isl), block_size)
    local, sequence = (np.frombuffer(h, np.uint64) for h in (ask.local_hashes, ask.sequence_hashes))
    return Prompt.of_hashes(ask.isl, block_size, local, sequence)
