"""DeciderLink: a front's connection to the decider, made again whenever it is lost."""

import asyncio
import itertools
import os
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import structlog

from ...base.backoff import Backoff
from ...base.clock import Clock
from ...base.errors import InvalidRequestError, NoWorkersError, RouterError
from ...process.supervised import stopped, supervise
from .connection import MessageConnection
from .messages import (
    VERSION,
    Alive,
    Answer,
    Ask,
    Booked,
    Cancel,
    Decided,
    Engines,
    Forget,
    FromDecider,
    Hello,
    Loads,
    Queued,
    Refused,
    Welcome,
)

CONNECT_AGAIN_S = 0.5

log = structlog.get_logger(__name__)


class DeciderAwayError(RouterError):
    """The decider does not answer: somebody else has to decide."""


class AnswerWatch:
    """Whether answers are overdue. Pure.

    They come in any order; as long as some come, nothing hangs.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._since: float | None = None

    def owed(self, now: float) -> None:
        """An answer is expected from now on."""
        if self._since is None:
            self._since = now

    def heard(self, now: float, *, more: bool) -> None:
        """Something came; `more`: further answers are expected."""
        self._since = now if more else None

    def is_overdue(self, now: float) -> bool:
        return self._since is not None and now - self._since > self.timeout_s


class DeciderLink:
    """From `start` to `close`. `is_ready`: the decider can be asked.

    Whenever there is a new connection `bookings` is asked for what the decider is to know first.
    Whoever waits for an answer when the connection is lost, or longer than `timeout_s` without a
    sign of life, is told by a DeciderAwayError.
    """

    def __init__(
        self, path: str, front: int, clock: Clock, *, timeout_s: float,
        bookings: Callable[[], Iterable[Booked]],
    ) -> None:  # fmt: skip
        self._path = path
        self._hello = Hello(VERSION, front, os.getpid(), secrets.token_hex(8))
        self._now = clock.now
        self._watch = AnswerWatch(timeout_s)
        self._bookings = bookings
        self._connection: MessageConnection[FromDecider] | None = None
        self._lost = asyncio.Event()
        self._said = asyncio.Event()  # it welcomed us, or is gone
        self._serials = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._queued: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.is_ready = False
        self.hashes = False
        """whether questions need the prompts' hashes"""
        self.losses = 0
        """connections that were lost, ever"""
        self.on_ready: list[Callable[[Welcome], None]] = []
        self.on_engines: Callable[[Engines], None] = lambda engines: None
        self.on_loads: Callable[[Loads], None] = lambda loads: None

    def start(self) -> None:
        self._task = supervise("decider-link", self._run)

    async def close(self) -> None:
        """Let go of the decider. Idempotent."""
        self._closing = True
        if self._connection is not None:
            self._connection.flush()
        await stopped(self._task)
        if self._connection is not None:
            self._connection.close()

    def tell(self, message: Any) -> None:
        """Tell the decider, if there is a connection; what is owed an answer comes by `ask`."""
        if self._connection is not None:
            self._connection.tell(message)

    def note(self, message: Any) -> None:
        """The same of what can wait for some milliseconds."""
        if self._connection is not None:
            self._connection.note(message)

    def next_serial(self) -> int:
        return next(self._serials)

    def ask(self, question: Any) -> "asyncio.Future[Any]":
        """Its answer: Decided or Answer. It fails with what a Refused says, or DeciderAwayError."""
        future = asyncio.get_running_loop().create_future()
        if not self.is_ready:
            future.set_exception(DeciderAwayError("the decider is away"))
            return future
        self._asked[question.serial] = future
        self._watch.owed(self._now())
        self.tell(question)
        return future

    def give_up(self, question: Any) -> None:
        """Wait for no answer any more; nothing if it has come."""
        self._queued.discard(question.serial)
        if self._asked.pop(question.serial, None) is None:
            return
        if isinstance(question, Ask):
            self.tell(Forget(question.serial, question.booking_id))
        else:
            self.tell(Cancel(question.serial))

    def beat(self, status: Any) -> None:
        """Tell how we are, which is to be answered; and look whether answers are overdue."""
        now = self._now()
        if self._watch.is_overdue(now) and self._connection is not None:
            self._connection.close(f"no answer for {self._watch.timeout_s:g} s")
        elif self.is_ready:
            self._watch.owed(now)
            self.tell(status)

    async def _run(self) -> None:
        backoff = Backoff(first=0.02, cap=CONNECT_AGAIN_S)
        while True:
            self._lost.clear()
            self._said.clear()
            connection: MessageConnection[FromDecider] = MessageConnection(
                FromDecider, self._on_message, self._on_lost
            )
            try:
                async with asyncio.timeout(self._watch.timeout_s):
                    loop = asyncio.get_running_loop()
                    await loop.create_unix_connection(partial(_itself, connection), self._path)
            except (OSError, TimeoutError):
                connection.close()
            else:
                self._connection = connection
                self._watch.heard(self._now(), more=True)
                connection.tell(self._hello)
                for booked in self._bookings():
                    connection.tell(booked)
                try:
                    await self._welcomed(backoff)
                    await self._lost.wait()
                finally:
                    connection.close()
            await asyncio.sleep(backoff.next())

    async def _welcomed(self, backoff: Backoff) -> None:
        """Wait for the decider's first word, not for ever."""
        try:
            async with asyncio.timeout(self._watch.timeout_s):
                await self._said.wait()
        except TimeoutError:
            assert self._connection is not None
            self._connection.close("it does not answer")
        else:
            backoff.reset()

    def _on_message(self, message: FromDecider) -> None:
        match message:
            case Decided() | Answer():
                self._answered(message.serial, message)
            case Refused():
                self._answered(message.serial, refusal_of(message))
            case Queued():
                if message.serial in self._asked:
                    self._queued.add(message.serial)
            case Loads():
                self.on_loads(message)
            case Engines():
                self.on_engines(message)
            case Welcome():
                self._on_welcome(message)
            case Alive():
                pass
        self._watch.heard(self._now(), more=len(self._asked) > len(self._queued))

    def _on_welcome(self, welcome: Welcome) -> None:
        if welcome.version != VERSION:
            raise ValueError(f"it speaks version {welcome.version}, and we {VERSION}")
        self.is_ready, self.hashes = True, welcome.hashes
        self._said.set()
        log.info("the decider answers")
        for listener in self.on_ready:
            listener(welcome)

    def _answered(self, serial: int, answer: Any) -> None:
        self._queued.discard(serial)
        future = self._asked.pop(serial, None)
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _on_lost(self, why: str) -> None:
        was_ready, self.is_ready = self.is_ready, False
        asked, self._asked = self._asked, {}
        self._queued.clear()
        self._lost.set()
        self._said.set()
        if was_ready and not self._closing:
            self.losses += 1
            log.warning("the decider is away: requests go by the loads known last", reason=why)
        for future in asked.values():
            if not future.done():
                future.set_exception(DeciderAwayError(why))


def _itself(connection: MessageConnection[FromDecider]) -> MessageConnection[FromDecider]:
    return connection


def refusal_of(message: Refused) -> RouterError:
    """What a Refused stands for."""
    if message.kind == "invalid":
        return InvalidRequestError(message.text, field=message.field)
    if message.kind == "failed":
        return RouterError(message.text)
    return NoWorkersError(message.text, overloaded=message.kind == "overloaded")


def refused(serial: int, error: RouterError) -> Refused:
    """An error as a message."""
    kind, field = "failed", None
    if isinstance(error, InvalidRequestError):
        kind, field = "invalid", error.field
    elif isinstance(error, NoWorkersError):
        kind = "overloaded" if error.overloaded else "no_workers"
    return Refused(serial, kind, str(error), field)
