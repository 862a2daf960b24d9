"""Siblings: what the processes of one router ask each other, over Unix sockets in their folder."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from ...base.errors import UNREADABLE, ConfigError, StatusCode
from ...process.supervised import stopped, supervise
from ...transport.http2 import (
    CallError,
    ChannelLimits,
    ClientChannel,
    Fault,
    Http2Server,
    ServerCall,
)
from .place import FrontPlace

SERVICE = "/dynamo_router.Siblings/"
ASK_TIMEOUT_S = 1.0
"""How long a sibling may take; one that hangs is left out of the answer."""
MAX_MESSAGE_BYTES = 32 << 20
RETRY_S = 0.2
CHANNEL = ChannelLimits(
    connect_timeout_s=1.0,
    first_backoff_s=RETRY_S / 4,
    max_backoff_s=RETRY_S,
    max_message_bytes=MAX_MESSAGE_BYTES,
)

log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
Answer = TypeVar("Answer")
Question = TypeVar("Question")


class Siblings:
    """The other processes of this router, from `start` until `close`; none without a place.

    Questions and answers are values that msgpack can write. Only processes of this user reach the
    socket.
    """

    def __init__(self, place: FrontPlace | None = None) -> None:
        self._place = place
        self._began = time.monotonic()
        self.on_lost: list[Callable[[int], None]] = []
        """called with the number of a sibling whose process has ended"""
        self.state: Callable[[], dict[str, Any]] = dict
        """what /health shows of this process beside its number and id"""
        self._methods: dict[str, Callable[[ServerCall], Awaitable[None]]] = {}
        self._server: Http2Server | None = None
        self._channels: dict[int, ClientChannel] = {}
        self._watching: list[asyncio.Task[None]] = []
        self.answer("Row", type(None), self._row)

    @property
    def folder(self) -> Path | None:
        """Which only processes of this router and user enter; None without others."""
        return None if self._place is None else Path(self._place.folder)

    @property
    def number(self) -> int:
        """Of this process."""
        return 0 if self._place is None else self._place.number

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of the other processes."""
        if self._place is None:
            return ()
        return tuple(n for n in range(self._place.count) if n != self._place.number)

    def answer(
        self,
        method: str,
        question: type[Question],
        answer: Callable[[Question], Awaitable[object]],
    ) -> None:
        """Answer this question of siblings. Before `start`."""
        decode = msgspec.msgpack.Decoder(question).decode

        async def serve(call: ServerCall) -> None:
            try:
                asked = decode(await call.read() or b"")
            except UNREADABLE as error:
                await call.abort(StatusCode.INVALID_ARGUMENT, str(error))
            await call.write(_encode(await answer(asked)))

        self._methods[SERVICE + method] = serve

    async def start(self) -> None:
        """Answer siblings, and notice when one ends. ConfigError if the socket cannot be had."""
        place = self._place
        if place is None:
            return
        path = place.socket_of(place.number)
        server = self._server = Http2Server()
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)  # of this front's last process
            server.bind_unix(path)
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"fronts: cannot listen on {path}: {why}") from None
        await server.start({**self._methods, SERVICE + "Watch": _stay})
        for number in self.others:
            self._channels[number] = ClientChannel(f"unix:{place.socket_of(number)}", CHANNEL)
        self._watching = [
            supervise(f"sibling-{number}", partial(self._watch, number)) for number in self.others
        ]

    async def close(self) -> None:
        """Ask and answer no more. Idempotent."""
        for task in self._watching:
            await stopped(task)
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        if self._server is not None:
            await self._server.kill()

    async def ask(
        self,
        number: int,
        method: str,
        question: object,
        answer: type[Answer],
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> Answer | None:
        """What one sibling answers; None if it does not, or not in time."""
        channel = self._channels.get(number)
        if channel is None:
            return None
        try:
            try:
                found = await self._answer_of(channel, method, question, timeout_s)
            except CallError as error:
                if error.outcome.fault is not Fault.CONNECT:
                    raise
                await asyncio.sleep(RETRY_S)  # it may just have begun
                found = await self._answer_of(channel, method, question, timeout_s)
            return msgspec.msgpack.decode(found, type=answer)
        except (CallError, *UNREADABLE) as error:
            log.debug("a sibling did not answer", front=number, method=method, error=str(error))
            return None

    async def _answer_of(
        self, channel: ClientChannel, method: str, question: object, timeout_s: float
    ) -> bytes:
        call = channel.call(SERVICE + method, _encode(question), timeout=timeout_s, wide=True)
        try:
            async for message in call:
                return message
        finally:
            call.cancel()
        return b""

    async def ask_all(
        self,
        method: str,
        question: object,
        answer: type[Answer],
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> dict[int, Answer | None]:
        """What each sibling answers, all asked at the same time."""
        asked = (self.ask(n, method, question, answer, timeout_s) for n in self.others)
        return dict(zip(self.others, await asyncio.gather(*asked), strict=True))

    async def first(
        self,
        method: str,
        question: object,
        answer: type[Answer],
        wanted: Callable[[Answer], bool],
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> Answer | None:
        """The first answer that is wanted, all siblings asked at the same time; None if there is
        none."""
        asked = [
            asyncio.ensure_future(self.ask(number, method, question, answer, timeout_s))
            for number in self.others
        ]
        try:
            for each in asyncio.as_completed(asked):
                found = await each
                if found is not None and wanted(found):
                    return found
            return None
        finally:
            for task in asked:
                task.cancel()

    async def health(self) -> dict[str, Any]:
        """For /health: each process that answers, what is in flight in them together, and the
        numbers of those that do not answer."""
        if not self.others:
            return {}
        found = await self.ask_all("Row", None, dict[str, Any])
        rows = [await self._row(None), *(row for row in found.values() if row is not None)]
        missing = [number for number, row in found.items() if row is None]
        report: dict[str, Any] = {"fronts": sorted(rows, key=itemgetter("front"))}
        report["in_flight"] = sum(row.get("in_flight", 0) for row in rows)
        return report | ({"fronts_missing": missing} if missing else {})

    async def _row(self, _: None) -> dict[str, Any]:
        started_s = round(time.monotonic() - self._began, 3)
        return {"front": self.number, "pid": os.getpid(), "started_s": started_s, **self.state()}

    async def _watch(self, number: int) -> None:
        """Hold a call open at a sibling: it breaks when the process ends, however it does."""
        while True:
            there = False
            call = self._channels[number].call(SERVICE + "Watch", b"")
            try:
                async for _ in call:
                    there = True
            except CallError:
                pass
            finally:
                call.cancel()
            if there:
                for listener in self.on_lost:
                    listener(number)
            await asyncio.sleep(RETRY_S)


async def _stay(call: ServerCall) -> None:
    await call.write(b"")
    await asyncio.Event().wait()
