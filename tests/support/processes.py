"""The project's commands as real processes, for tests that kill them."""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from support.polling import until

NO_LAME_DUCK = {"DYNAMO_ROUTER_LAME_DUCK_S": "0"}
"""Nobody balances load in front of a test's router, so it need not wait for that at its end."""

BUSY_S = 240.0
"""How long a command may take to start, or to end, on a machine that is busy with others: `serve`
starts mock engines and several processes in turn, each of which has 60 s."""


async def output_of(
    *argv: str, env: Mapping[str, str], timeout_s: float, cwd: Path | None = None
) -> str:
    """What a program prints that takes no input; it must end well."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=env,
    )
    try:
        async with asyncio.timeout(timeout_s):
            printed, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = printed.decode(errors="replace")
    assert process.returncode == 0, complaints.decode(errors="replace") + said
    return said


class Command:
    """One running `dynamo-router ...`; its output, both streams, is in `text`."""

    def __init__(self, process: asyncio.subprocess.Process, output: Path) -> None:
        self._process, self._output = process, output

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        return self._output.read_text()

    async def says(self, word: str, timeout_s: float = BUSY_S) -> str:
        """The first line with `word` in it, once it is there."""

        def lines() -> list[str]:
            return [line for line in self.text.splitlines() if word in line]

        async def over() -> bool:  # asked less often than what is at hand
            return bool(lines()) or self._process.returncode is not None

        await until(over, timeout_s)
        assert lines(), f"never said {word!r}, but:\n{self.text}"
        return lines()[0]

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, and go on."""
        self._process.send_signal(number)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait for its end; the exit code."""
        if self._process.returncode is None:
            self._process.send_signal(how)
        return await self.ended()

    async def ended(self) -> int:
        """Wait for its end without a signal: one to a process that is gone would hide its code."""
        try:
            async with asyncio.timeout(BUSY_S):  # it may not have begun
                return await self._process.wait()
        except TimeoutError:
            raise AssertionError(f"it did not end, but said:\n{self.text}") from None


@asynccontextmanager
async def command(
    folder: Path,
    *words: str,
    environ: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> AsyncIterator[Command]:
    """Run `dynamo-router WORDS` in `folder`, with more variables in its environment; killed at the
    end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"output-{len(list(folder.iterdir()))}.txt"
    with output.open("wb") as sink:
        # -P keeps the working directory off the path: what is installed is what runs.
        process = await asyncio.create_subprocess_exec(
            python, "-P", "-m", "dynamo_router", *words,
            stdout=sink, stderr=sink, stdin=asyncio.subprocess.DEVNULL, cwd=folder,
            env={**NO_LAME_DUCK, **os.environ, **(environ or {})},
        )  # fmt: skip
    running = Command(process, output)
    try:
        yield running
    finally:
        await running.stop(signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Process ids of the direct children."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it is reaped between
        return False
    return state != "Z"


def stands_still(pid: int) -> bool:
    """Whether all threads of a process are stopped: after SIGSTOP they may go on for a while."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    try:
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)
    except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
        return False


async def http_json(address: str, path: str, body: object = None, method: str | None = None) -> Any:
    """GET, or POST (or another method) of a JSON body, off the event loop."""
    data = None if body is None else json.dumps(body).encode()

    def ask() -> Any:
        request = urllib.request.Request(f"http://{address}{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    return await asyncio.to_thread(ask)


async def http_text(address: str, path: str) -> str:
    """GET of a text, off the event loop."""

    def ask() -> str:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    return await asyncio.to_thread(ask)


def own_children() -> list[int]:
    return children_of(os.getpid())
