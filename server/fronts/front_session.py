"""FrontSession: one front as the decider sees it: its questions, its bookings, its calls."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog

from ...base.clock import Clock
from ...base.errors import RouterError
from ...base.identity import WorkerWithDpRank
from ...router.admission import Objectives, Urgency
from ...router.policy import Decision
from ...router.prompt import Prompt
from ...router.steps import by_steps
from ...transport.grpc_methods import Methods
from ..dispatch import Flight, GenerateFacts
from ..pool import WorkerPool
from .calls import answer_carried
from .connection import MessageConnection
from .leases import Leases
from .link import refused
from .messages import (
    VERSION,
    Alive,
    Ask,
    Booked,
    Call,
    Cancel,
    Decided,
    Engines,
    Forget,
    Freed,
    FromFront,
    Hello,
    Output,
    Prefilled,
    Queued,
    Report,
    Status,
    Totals,
    Welcome,
)
from .remote_decisions import prompt_told
from .told_reports import take_report

MAX_PENDING = 1 << 16
"""Questions and calls of one front without an answer."""
TOUCHED_AT_ONCE = 1024

log = structlog.get_logger(__name__)


class FrontSession:
    """From a connection to its end; then what the front had booked is free.

    `on_hello(self)` and `on_gone(self)` say when it is a front's; `on_totals` hears what it has
    counted. `hello` and `status` are what it said of itself.
    """

    def __init__(
        self,
        pool: WorkerPool,
        clock: Clock,
        methods: Methods,
        *,
        on_hello: Callable[["FrontSession"], Welcome],
        on_gone: Callable[["FrontSession"], None],
        on_totals: Callable[["FrontSession", Totals], None],
    ) -> None:
        self._pool, self._router = pool, pool.router
        self._decisions = pool.decisions
        self._now = clock.now
        self._methods = methods
        self._on_hello, self._on_gone, self._on_totals = on_hello, on_gone, on_totals
        self.connection: MessageConnection[Any] = MessageConnection(
            FromFront, self._on_message, self._on_lost
        )
        self.leases = Leases()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._ended = False
        self.hello: Hello | None = None
        self.status = Status(0, 0, False)
        self.since = self.heard_at = clock.now()
        self.told_engines: Engines | None = None
        self.counts: Counter[str] = Counter()
        """decided, refused, queued, told_anew, unbooked"""

    @property
    def health(self) -> dict[str, Any]:
        """For /health."""
        assert self.hello is not None
        return {
            "front": self.hello.front,
            "pid": self.hello.pid,
            "connected_s": round(self._now() - self.since, 1),
            "in_flight": self.status.in_flight,
            "bookings": len(self.leases),
            "waiting": self.leases.waiting,
            "decided": self.counts["decided"],
            "fallback_decisions": self.status.fallbacks,
            "draining": self.status.draining,
        }

    async def touch(self) -> None:
        """What it has booked is alive: it does not expire."""
        for some in by_steps(self.leases.booked, TOUCHED_AT_ONCE):
            self._router.touch_all(some)
            await asyncio.sleep(0)

    def _on_message(self, message: Any) -> None:
        self.heard_at = self._now()
        if self.hello is None:
            if not isinstance(message, Hello):
                raise ValueError("its first message is no Hello")
            if message.version != VERSION:
                raise ValueError(f"it speaks version {message.version}, and we {VERSION}")
            self.hello = message
            self.connection.tell(self._on_hello(self))
            return
        match message:
            case Ask():
                self._on_ask(message)
            case Prefilled():
                self._on_prefilled(message)
            case Freed():
                self._free(message.booking_id, message.output_tokens)
            case Report():
                take_report(self._pool.monitor.reports, message, self.heard_at)
            case Output():
                if message.booking_id in self.leases:
                    self._router.add_output_tokens(message.booking_id, message.tokens)
            case Forget():
                self._stop(message.serial)
                if self.leases.forget(message.serial, message.booking_id):
                    self._router.free(message.booking_id)
                self._decisions.load_fell()
            case Booked():
                self._on_booked(message)
            case Status():
                self.status = message
                self.connection.tell(Alive())
            case Totals():
                self._on_totals(self, message)
            case Call():
                self._on_call(message)
            case Cancel():
                self._stop(message.serial)
            case _:
                raise ValueError(f"it says {type(message).__name__} again")

    # Questions

    def _on_ask(self, ask: Ask) -> None:
        if len(self._tasks) >= MAX_PENDING:
            raise ValueError(f"{MAX_PENDING} questions wait")
        flight = self._flight(ask)
        self.leases.ask(ask.serial, ask.booking_id)
        if ask.beside:
            self._later(ask, partial(self._decisions.second, flight))
            return
        try:
            decision = self._decisions.at_once(flight, again=ask.again)
        except RouterError as error:
            self._refuse(ask, error)
            return
        if decision is not None:
            self._decided(ask, decision, 0.0)
            return
        self.counts["queued"] += 1
        self.connection.tell(Queued(ask.serial))
        self._later(ask, partial(self._decisions.in_turn, flight, again=ask.again))

    def _later(self, ask: Ask, decide: Callable[[], Awaitable[Decision]]) -> None:
        began = self._now()

        async def answer() -> None:
            try:
                decision = await decide()
            except RouterError as error:
                self._refuse(ask, error)
            else:
                self._decided(ask, decision, self._now() - began)

        task = self._tasks[ask.serial] = asyncio.create_task(answer(), name="front-question")
        # Not in `answer`: a task that is cancelled before its first turn runs nothing of it.
        task.add_done_callback(lambda _: self._tasks.pop(ask.serial, None))

    def _decided(self, ask: Ask, decision: Decision, waited_s: float) -> None:
        booked = decision.request_id is not None
        if not self.leases.answer(ask.serial, booked=booked):
            if booked:
                self._router.free(ask.booking_id)
            return
        self.counts["decided"] += 1
        self.connection.tell(
            Decided(
                ask.serial,
                decision.worker.worker_id,
                decision.worker.dp_rank,
                decision.number,
                decision.overlap_blocks,
                decision.request_blocks,
                decision.cached_tokens,
                booked,
                decision.host_overlap_blocks,
                decision.disk_overlap_blocks,
                waited_s,
            )
        )

    def _refuse(self, ask: Ask, error: RouterError) -> None:
        if self.leases.answer(ask.serial, booked=False):
            self.counts["refused"] += 1
            self.connection.tell(refused(ask.serial, error))

    def _flight(self, ask: Ask) -> Flight:
        return Flight(
            ask.booking_id,
            b"",
            GenerateFacts("", self._prompt(ask), 0, ask.output_tokens, 1, True),
            self._now() - max(0.0, ask.waited_s),
            pinned=None if ask.pinned is None else WorkerWithDpRank(*ask.pinned),
            urgency=Urgency(ask.priority, ask.jump),
            objectives=Objectives(ttft_ms=ask.ttft_ms),
            tenant=ask.tenant,
            unfit=frozenset(ask.excluded),
        )

    def _prompt(self, ask: Ask) -> Prompt:
        router = self._router
        prompt = prompt_told(ask, router.block_size)
        if router.uses_caches and not ask.local_hashes:
            # Its front did not know that we look at caches: it shares blocks with nobody.
            blocks = ask.isl // router.block_size
            local, sequence = (router.slots.private_hashes(blocks) for _ in range(2))
            prompt = Prompt.of_hashes(ask.isl, router.block_size, local, sequence)
        return prompt

    # Bookings

    def _on_booked(self, message: Booked) -> None:
        """A request is with a worker already: count it there."""
        ask, worker = message.ask, WorkerWithDpRank(*message.worker)
        try:
            decision = self._router.decide(
                self._prompt(ask),
                ask.booking_id,
                pinned_worker=worker,
                expected_output_tokens=ask.output_tokens or None,
                tenant=ask.tenant,
            )
        except RouterError:  # its worker is not there, or not well yet
            self.counts["unbooked"] += 1
            return
        if decision.request_id is None:
            self.counts["unbooked"] += 1
            return
        self.counts["told_anew"] += 1
        self.leases.book(ask.booking_id)
        if message.prefilled:
            self._router.release_prefill(ask.booking_id)
        if message.output_tokens:
            self._router.add_output_tokens(ask.booking_id, message.output_tokens)

    def _on_prefilled(self, message: Prefilled) -> None:
        if message.booking_id not in self.leases:
            return
        if message.seen:
            cached = message.cached_tokens
            self._router.mark_prefill_complete(message.booking_id, cached_tokens=cached)
        else:
            self._router.release_prefill(message.booking_id)
        self._decisions.load_fell()

    def _free(self, booking_id: str, output_tokens: int | None) -> None:
        if self.leases.free(booking_id):
            self._router.free(booking_id, output_tokens=output_tokens)
            self._decisions.load_fell()

    # Calls

    def _on_call(self, call: Call) -> None:
        if len(self._tasks) >= MAX_PENDING:
            raise ValueError(f"{MAX_PENDING} calls wait")
        task = self._tasks[call.serial] = answer_carried(self._methods, call)

        def done(task: "asyncio.Task[Any]") -> None:
            self._tasks.pop(call.serial, None)
            if not task.cancelled() and task.exception() is None:
                self.connection.tell(task.result())
            elif not task.cancelled():
                log.error("a call of a front failed", path=call.path, exc_info=task.exception())
                self.connection.tell(refused(call.serial, RouterError("internal error")))

        task.add_done_callback(done)

    def _stop(self, serial: int) -> None:
        task = self._tasks.get(serial)
        if task is not None:
            task.cancel()

    def end(self, why: str) -> None:
        """Have the connection closed, and what the front had booked free at once: whoever comes in
        its place tells of it in the same moment."""
        self.connection.close(why)
        self._on_lost(why)

    def _on_lost(self, why: str) -> None:
        if self._ended:
            return
        self._ended = True
        waiting, booked = self.leases.end()
        for task in list(self._tasks.values()):
            task.cancel()
        for booking_id in booked:
            self._router.free(booking_id)
        if booked or waiting:
            self._decisions.load_fell()
        if self.hello is not None:
            tell = log.info if self.status.draining else log.warning
            tell(
                "a front is gone",
                front=self.hello.front,
                pid=self.hello.pid,
                freed=len(booked),
                reason=why,
            )
            self._on_gone(self)
        elif why:
            log.warning("a connection to the decider was no front's", reason=why)
