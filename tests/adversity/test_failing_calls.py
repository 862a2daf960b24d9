"""One of our own calls fails while a plain chat goes through: the chat ends, its client learns so
and by a status of ours, and nothing of it is left; the next one is served. Both ways.

Each call of one of our Python functions that is made for the chat fails once, at its beginning, as
for want of memory or by a mistake of ours: so do all that kernels make. ADVERSITY_PROFILE=long
takes every one.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import structlog
from support.fake_engine import FakeEngine, chunk, complete
from support.frontend.chat_ways import WAYS, Answer, ChatServer, chat, chat_server, text_of
from support.polling import until

import dynamo_router

STRIDE = 1 if environ.get("ADVERSITY_PROFILE") == "long" else 5
ROOTS = tuple(str(Path(path).resolve()) for path in dynamo_router.__path__)
RELEASES = frozenset(
    (
        *("KvRouter.free", "SlotTable.free", "SharedBound.give_back"),
        *("AttemptLedger.on_ended", "AttemptLedger.release", "_BodyBytes.close"),
        *("HttpConnection._report", "AnswerWatch.on_end", "SseWriter.close"),
        *("HttpConnection.connection_lost", "BoundedConnection.connection_lost"),
    )
)
"""What ends and counts a request: it is not done where this itself is not called."""
FROM_THE_LOOP = frozenset(
    (
        *("LoopTurns._on_next_turn", "HttpConnection._answer", "Connection.connection_made"),
        *("Dispatcher._begun", "Acceptor._accept", "HttpListener._opened"),
        "BoundedConnection.connection_made",
        "NextTurn._call_all",
    )
)
"""Called by the event loop, or with what was booked: no request ends by a failure of the call."""


class Failure:
    """Has the n-th call fail that is made on this thread, once."""

    def __init__(self, number: int, error: type[BaseException]) -> None:
        self._left, self._error = number, error
        self.where = ""
        """of the call that failed; empty: there were not as many"""

    def __enter__(self) -> "Failure":
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOTS) or _is_exempt(frame):
            return
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            self.where = code.co_qualname
            raise self._error("for the test")


def _is_exempt(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_code[frame.f_lasti + 1] & 3:  # a coroutine that goes on
        return True
    if "/tests/" in code.co_filename or code.co_qualname in RELEASES | FROM_THE_LOOP:
        return True
    caller = frame.f_back
    if caller is None or "/tests/" in caller.f_code.co_filename:
        return True
    while caller is not None:  # loops beside requests are begun again if they fail
        if caller.f_code.co_filename.endswith("supervised.py"):
            return True
        if caller.f_code.co_name == "connection_lost":  # which lets go of all that there was
            return True
        caller = caller.f_back
    return False


async def three(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    for message in (chunk(request, 64), chunk(request, 65, 66), complete(request, 64, 65, 66)):
        yield message


WORDS = text_of([64, 65, 66])


def check(found: Answer, where: str) -> None:
    """A client has all, or an error that is no fault of its own, or an end that is cut off."""
    assert WORDS.startswith(found.text), (where, found)
    if found.status == 200 and found.whole and not found.error:
        assert (found.text, found.reason) == (WORDS, "length"), where
        assert found.usage is not None, where
    elif found.status != 200 and found.status:
        assert found.status >= 500 and found.whole and found.error, (where, found)


@pytest.fixture(autouse=True)
def plain_log() -> Iterator[None]:
    """No lines: tracebacks in the form that is usual in tests take a second each."""
    silent = structlog.ReturnLoggerFactory()
    structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=silent)
    yield
    structlog.reset_defaults()


@contextmanager
def no_complaints() -> Iterator[None]:
    """What the event loop says of failed callbacks is expected."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)
    try:
        yield
    finally:
        loop.set_exception_handler(None)


async def asked(chats: ChatServer, number: int, error: type[BaseException]) -> str:
    """Have the n-th call for a chat fail; where that was."""
    with Failure(number, error) as failure:
        client = await chats.send(chat())
        try:
            found = await client.answer()
        except TimeoutError:
            raise AssertionError(f"no answer after {failure.where}") from None
        finally:
            await client.leaves()
    try:
        await until(lambda: not chats.left_over())
    except AssertionError:
        raise AssertionError(f"{failure.where}: {chats.left_over()}") from None
    check(found, failure.where)
    return failure.where


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "error",
    [RuntimeError, MemoryError, OSError, asyncio.CancelledError],
    ids=lambda error: error.__name__,
)
async def test_a_call_of_ours_that_fails_ends_one_chat(
    error: type[BaseException], way: str
) -> None:
    async with chat_server(way, FakeEngine(three)) as chats:
        with no_complaints():
            number, where, failed = 1, "-", set()
            while where:
                await until(lambda: chats.server.monitor.any_ready)
                where = await asked(chats, number, error)
                failed.add(where)
                number += STRIDE
        assert len(failed) > 150 / STRIDE
        found = await chats.ask(chat())
        assert (found.text, found.whole) == (WORDS, True)
