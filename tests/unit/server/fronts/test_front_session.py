"""What the decider keeps of a front's questions, whatever comes in one batch of messages."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

from msgspec import structs
from support.polling import until

from dynamo_router.base.clock import SystemClock
from dynamo_router.router.admission.queue import AdmissionQueue
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.server.admission import Admission
from dynamo_router.server.dispatch.decisions import RouterDecisions
from dynamo_router.server.fronts.front_session import FrontSession
from dynamo_router.server.fronts.messages import (
    VERSION,
    Ask,
    Booked,
    Forget,
    Hello,
    Refused,
    Welcome,
)
from dynamo_router.workers.registry import WorkerState


class Deciding:
    """A router behind a queue, whose workers take a request when `busy` is over."""

    def __init__(self) -> None:
        clock = SystemClock()
        settings = KvRouterConfig(mode="least-loaded", use_kv_events=False, block_size=16)
        self.router = KvRouter(settings, clock=clock)
        self.router.registry.add(1)
        self.router.registry.set_state(1, WorkerState.READY)
        self.busy = True
        self.queue = AdmissionQueue(lambda _: math.inf if self.busy else 0.0)
        self.admission = Admission(self.queue)
        self._clock = clock
        self._pool: Any = SimpleNamespace(
            router=self.router, decisions=RouterDecisions(self.router, clock, self.admission)
        )

    def __enter__(self) -> "Deciding":
        return self

    def __exit__(self, *error: object) -> None:
        self.router.close()

    def front(self, number: int) -> "Talking":
        return Talking(self._pool, self._clock, number)


class Talking(FrontSession):
    """A front's session without its socket: `says` is what it answered."""

    def __init__(self, pool: Any, clock: SystemClock, number: int) -> None:
        super().__init__(
            pool,
            clock,
            {},
            on_hello=lambda session: Welcome(VERSION, False, 2),
            on_gone=lambda session: None,
            on_totals=lambda session, totals: None,
        )
        self.says: list[Any] = []
        self.connection.tell = self.says.append  # type: ignore[method-assign]
        self._on_message(Hello(VERSION, number, 1, f"token {number}"))

    def hears(self, *messages: Any) -> None:
        """They came together."""
        for message in messages:
            self._on_message(message)


def ask(serial: int, booking_id: str) -> Ask:
    return Ask(serial, booking_id, 40, b"", b"", [], None, 0, 0.0, 4, 0.0)


async def test_a_question_forgotten_in_the_batch_that_asked_it_leaves_nothing() -> None:
    with Deciding() as deciding:
        front = deciding.front(0)
        for serial in range(3):
            front.hears(ask(serial, f"r{serial}"), Forget(serial, f"r{serial}"))
        await until(lambda: not front._tasks)
        assert (front.leases.waiting, len(deciding.queue)) == (0, 0)


async def test_fronts_that_wait_with_the_same_id_do_not_take_each_others_turn() -> None:
    with Deciding() as deciding:
        one, other = deciding.front(0), deciding.front(1)
        one.hears(ask(1, "same"))
        await until(lambda: len(deciding.queue) == 1)
        other.hears(ask(1, "same"))
        await until(lambda: not other._tasks)
        (refused,) = [said for said in other.says if isinstance(said, Refused)]
        assert (refused.kind, refused.field) == ("invalid", "request_id")
        deciding.busy = False
        deciding.admission.poll()
        await until(lambda: not one._tasks)
        assert one.leases.booked == ["same"] and deciding.router.slots.worker_of("same") is not None
        assert (other.leases.waiting, len(other.leases)) == (0, 0)
        one._on_lost("it ends")
        assert deciding.router.slots.worker_of("same") is None


async def test_a_front_that_comes_anew_keeps_what_it_tells_of() -> None:
    with Deciding() as deciding:
        old, new = deciding.front(0), deciding.front(0)
        booked = Booked(ask(1, "r1"), (1, 0), False, 0)
        old.hears(booked)
        old.end("another one has its place")
        new.hears(booked)
        old._on_lost("it was closed")  # the event loop tells of it later
        assert new.leases.booked == ["r1"]
        assert deciding.router.slots.worker_of("r1") is not None
        new.end("it ends")
        assert deciding.router.slots.worker_of("r1") is None


async def test_what_a_front_tells_of_counts_for_its_tenant() -> None:
    with Deciding() as deciding:
        front, shares = deciding.front(0), deciding.router.limits.tenants
        front.hears(Booked(structs.replace(ask(1, "r1"), tenant="a"), (1, 0), False, 0))
        assert shares.enabled and len(shares) == 1 and shares.virtual("a") > 0
        front.end("it ends")


async def test_a_session_ends_with_all_that_waits() -> None:
    with Deciding() as deciding:
        front = deciding.front(0)
        front.hears(ask(1, "r1"), ask(2, "r2"))
        front._on_lost("it ends")
        await asyncio.sleep(0)
        await until(lambda: not front._tasks)
        assert len(deciding.queue) == 0 and deciding.admission._waiters == {}
