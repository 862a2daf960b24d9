"""A `dynamo-router serve` of our own, as a child process: what the demo sends its load to."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import aiohttp

from ...runtime.child_process import tethered
from ...runtime.errors import RouterError

READY = re.compile(r"dynamo-router ready: grpc (\S+) http (\S+)")
STOP_TIMEOUT_S = 20.0
POLL_S = 0.05
KEPT_LINES = 30


class ServeProcess:
    """The router and its mock engines, from `async with` to its end and never longer.

    Entering returns when `workers` engines can take requests. RouterError, with the child's last
    words, if that does not come about within `start_timeout_s`. Leaving stops the child and all of
    its children: first politely, then not.
    """

    def __init__(self, arguments: Sequence[str], *, workers: int, start_timeout_s: float) -> None:
        self._arguments = arguments
        self._workers = workers
        self._start_timeout_s = start_timeout_s
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.grpc_address = ""
        self.http_address = ""

    async def __aenter__(self) -> Self:
        # -P: what lies in the current directory must not take a module's place.
        command = [sys.executable, "-P", "-m", "dynamo_router", "serve", *self._arguments]
        # A session of its own: Ctrl-C in our terminal is ours alone to hear and to pass on, and
        # whatever the child leaves behind can be found by its group.
        self._process = await asyncio.create_subprocess_exec(
            *tethered(command), stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        try:
            async with asyncio.timeout(self._start_timeout_s):
                ready = asyncio.Event()
                self._reading = asyncio.create_task(self._read(ready))
                await self._until_ready(ready)
        except TimeoutError:
            await self._stop()
            raise self._failure(f"was not ready within {self._start_timeout_s:g} s") from None
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _until_ready(self, ready: asyncio.Event) -> None:
        assert self._reading is not None
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({waiting, self._reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not ready.is_set():
            raise self._failure("ended before it was ready")
        # Ready to listen is not yet ready to serve: its engines are still being greeted.
        async with aiohttp.ClientSession(trust_env=False) as http:
            while await self._ready_workers(http) < self._workers:
                if self._reading.done():
                    raise self._failure("ended while its engines started")
                await asyncio.sleep(POLL_S)

    async def _ready_workers(self, http: aiohttp.ClientSession) -> int:
        with contextlib.suppress(aiohttp.ClientError):
            async with http.get(f"http://{self.http_address}/workers") as answer:
                listed = await answer.json()
                workers = listed["workers"] if isinstance(listed, dict) else listed
                return sum(worker["state"].lower() == "ready" for worker in workers)
        return 0

    async def _read(self, ready: asyncio.Event) -> None:
        """Read what the child says, to its end: a full pipe would stop it."""
        assert self._process is not None and self._process.stdout is not None
        while line := await self._process.stdout.readline():
            text = line.decode(errors="replace").rstrip()
            self._said.append(text)
            if found := READY.search(text):
                self.grpc_address, self.http_address = found.groups()
                ready.set()

    async def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        # Shielded, so that a second Ctrl-C does not leave half of it running.
        ending = asyncio.ensure_future(self._end(process))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            _signal_group(process.pid, signal.SIGKILL)
            await ending
            raise

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            self._said.append(f"(did not stop within {STOP_TIMEOUT_S:g} s, and was killed)")
        _signal_group(process.pid, signal.SIGKILL)
        await process.wait()
        if self._reading is not None:
            await self._reading

    def _failure(self, what: str) -> RouterError:
        said = "\n".join(f"  {line}" for line in self._said) or "  (it said nothing)"
        return RouterError(f"dynamo-router serve {what}:\n{said}")


def _signal_group(leader: int, number: signal.Signals) -> None:
    """Signal what is left of a child's group; nothing, where it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
