"""A front asks, gives up, and decides by itself: what is booked at the decider in the end."""

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.polling import until

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import InvalidRequestError, NoWorkersError
from dynamo_router.router.prompt import Prompt
from dynamo_router.server.dispatch import Flight, GenerateFacts
from dynamo_router.server.dispatch.status import RequestAbortedError
from dynamo_router.server.fronts import messages
from dynamo_router.server.fronts.connection import MessageConnection
from dynamo_router.server.fronts.link import DeciderLink
from dynamo_router.server.fronts.load_picture import LoadPicture
from dynamo_router.server.fronts.messages import (
    VERSION,
    Ask,
    Booked,
    Call,
    Decided,
    Forget,
    Freed,
    FromFront,
    Hello,
    Loads,
    Queued,
    Refused,
    Welcome,
)
from dynamo_router.server.fronts.remote_decisions import RemoteDecisions
from dynamo_router.workers.registry import WorkerRegistry

BLOCK = 16


class KnownWorkers:
    """What it asks of a health monitor: the ways to workers."""

    def __init__(self, *worker_ids: int) -> None:
        self.worker_ids = worker_ids

    def client(self, worker_id: int) -> object | None:
        return object() if worker_id in self.worker_ids else None


class ScriptedDecider:
    """Listens, keeps what it is told, and says what a test has it say."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.connections: list[MessageConnection[Any]] = []

    async def listen(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, str(path))

    async def close(self) -> None:
        self._server.close()
        for connection in self.connections:
            connection.close()
        await asyncio.sleep(0)

    def say(self, message: Any) -> None:
        self.connections[-1].tell(message)

    def heard(self, kind: type) -> list[Any]:
        return [message for message in self.told if isinstance(message, kind)]

    def _accept(self) -> asyncio.Protocol:
        self.connections.append(MessageConnection(FromFront, self._on_message, lambda why: None))
        return self.connections[-1]

    def _on_message(self, message: Any) -> None:
        self.told.append(message)
        if isinstance(message, Hello):
            self.say(Welcome(VERSION, True, 2))


class Asked:
    """A front's decisions, connected to a scripted decider."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "decider.sock"
        self.decider = ScriptedDecider()
        clock = SystemClock()
        registry = WorkerRegistry()
        for worker_id in (1, 2):
            registry.add(worker_id)
        self.decisions = RemoteDecisions(
            registry,
            KnownWorkers(1, 2),  # type: ignore[arg-type]
            clock,
            LoadPicture(random.Random(1)),
            BLOCK,
        )
        self.link = DeciderLink(
            str(self._path), 0, clock, timeout_s=5.0, bookings=self.decisions.told_anew
        )
        self.decisions.attach(self.link)

    async def __aenter__(self) -> "Asked":
        await self.decider.listen(self._path)
        self.link.start()
        await until(lambda: self.link.is_ready)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.link.close()
        await self.decider.close()

    def flight(self, name: str) -> Flight:
        prompt = Prompt(np.arange(40, dtype=np.uint32), BLOCK)
        return Flight(name, b"", GenerateFacts(name, prompt, 39, 4, 1, True), 0.0)

    def ask(self, name: str = "r1") -> "asyncio.Task[Any]":
        return asyncio.ensure_future(self.decisions.in_turn(self.flight(name), again=False))

    async def question(self, number: int = 0) -> Ask:
        await until(lambda: len(self.decider.heard(Ask)) > number)
        found: Ask = self.decider.heard(Ask)[number]
        return found


def decided(ask: Ask, worker_id: int = 1) -> Decided:
    return Decided(ask.serial, worker_id, 0, 7, 1, 3, 16, True, 0, 0, 0.0)


async def test_the_decision_and_what_becomes_of_its_booking(tmp_path: Path) -> None:
    async with Asked(tmp_path) as front:
        asking = front.ask()
        ask = await front.question()
        assert (ask.isl, len(ask.local_hashes), len(ask.sequence_hashes)) == (40, 16, 16)
        front.decider.say(decided(ask))
        decision = await asking
        assert (decision.worker, decision.overlap_blocks, decision.request_id) == ((1, 0), 1, "r1")
        front.decisions.free("r1", output_tokens=4)
        front.decisions.free("r1")  # freed once, however often it is said
        await until(lambda: front.decider.heard(Freed))
        assert front.decider.heard(Freed) == [Freed("r1", 4)]
        assert list(front.decisions.told_anew()) == []


async def test_a_question_that_is_given_up_is_forgotten_there(tmp_path: Path) -> None:
    async with Asked(tmp_path) as front:
        asking = front.ask()
        ask = await front.question()
        front.decider.say(Queued(ask.serial))
        asking.cancel()
        await until(lambda: front.decider.heard(Forget))
        assert front.decider.heard(Forget) == [Forget(ask.serial, "r1")]
        front.decider.say(decided(ask))  # too late: nobody takes it
        front.decider.say(Loads([(1, 0, 3)]))
        await until(lambda: front.decisions._picture.load((1, 0)) == 3)
        assert list(front.decisions.told_anew()) == []


async def test_a_decision_that_comes_with_the_cancellation_is_freed(tmp_path: Path) -> None:
    async with Asked(tmp_path) as front:
        asking = front.ask()
        ask = await front.question()
        _, future = front.decisions._waiting["r1"]
        front.link._on_message(decided(ask))  # answered, and not awaited yet
        assert future.done()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: front.decider.heard(Freed))
        assert front.decider.heard(Freed) == [Freed("r1")]
        assert list(front.decisions.told_anew()) == []


async def test_an_abort_that_comes_with_the_decision_ends_the_request(tmp_path: Path) -> None:
    async with Asked(tmp_path) as front:
        flight = front.flight("r1")
        asking = asyncio.ensure_future(front.decisions.in_turn(flight, again=False))
        ask = await front.question()
        front.link._on_message(decided(ask))  # answered, and not awaited yet
        flight.aborted = True
        assert not front.decisions.give_up("r1", RequestAbortedError("aborted"))
        with pytest.raises(RequestAbortedError):
            await asking
        await until(lambda: front.decider.heard(Freed))
        assert front.decider.heard(Freed) == [Freed("r1")]


async def test_a_prompt_too_long_for_a_message_costs_nobody_the_decider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_CONTENT_BYTES", 31)
    async with Asked(tmp_path) as front:
        with pytest.raises(InvalidRequestError, match="32 bytes"):
            await front.ask()
        assert front.link.is_ready and not front.decider.heard(Ask)


async def test_what_the_decider_reads_slowly_is_no_reason_to_leave_it(tmp_path: Path) -> None:
    async with Asked(tmp_path) as front:
        large = b"x" * (6 << 20)
        for serial in range(3):
            front.link.tell(Call(serial, "path", large, [], "", [], ""))
            await asyncio.sleep(0)  # each is written by itself
        await until(lambda: len(front.decider.heard(Call)) == 3)
        assert front.link.losses == 0 and len(front.decider.connections) == 1


async def test_a_worker_that_is_not_known_here_yet_is_not_taken(tmp_path: Path) -> None:
    async with Asked(tmp_path) as front:
        asking = front.ask()
        front.decider.say(decided(await front.question(), worker_id=9))
        second = await front.question(1)
        assert second.excluded == [9]
        assert front.decider.heard(Freed) == [Freed("r1")]
        front.decider.say(decided(second, worker_id=2))
        assert (await asking).worker == (2, 0)


async def test_refusals_are_what_they_were(tmp_path: Path) -> None:
    async with Asked(tmp_path) as front:
        for number, (kind, raised) in enumerate(
            (("overloaded", NoWorkersError), ("invalid", InvalidRequestError))
        ):
            asking = front.ask()
            ask = await front.question(number)
            front.decider.say(Refused(ask.serial, kind, "no", "request_id"))
            with pytest.raises(raised, match="no") as caught:
                await asking
            assert getattr(caught.value, "overloaded", True)


async def test_whoever_waits_when_the_decider_goes_is_decided_by_loads(tmp_path: Path) -> None:
    async with Asked(tmp_path) as front:
        front.decider.say(Loads([(1, 0, 5)]))
        asking = front.ask()
        ask = await front.question()
        front.decider.say(Queued(ask.serial))
        await until(lambda: front.link._queued)
        front.decider.connections[-1].close()
        assert (await asking).worker == (2, 0)
        assert front.decisions.fallbacks == 1
        # The next decider is told of it, before anything is asked.
        await until(lambda: front.link.is_ready and front.decider.heard(Booked))
        (booked,) = front.decider.heard(Booked)
        assert (booked.ask.booking_id, tuple(booked.worker), booked.prefilled) == (
            "r1",
            (2, 0),
            False,
        )
