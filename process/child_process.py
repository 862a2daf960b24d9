"""Child processes that cannot outlive the one that started them, whatever kills it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from ..base.errors import RouterError

Answer = TypeVar("Answer")

_POLL_S = 0.01
KEPT_LINES = 30
"""Lines of a child's output that are kept for an error message."""

# Runs in the child before the program it becomes. 1 is PR_SET_PDEATHSIG, 9 is SIGKILL. If the
# parent went away before the call, the signal would never come: hence the look at getppid.
_DIE_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


# Looks for children of its parent until a line arrives, waits for the end of the parent, and
# kills those that it found. All are held by descriptors, which stay valid when a number is
# given to another process. Of /proc/PID/stat field 4 is the parent, 22 the start: proc(5).
_KILL_AFTER_PARENT = """\
import os, select, signal, sys
parent, every_s = int(sys.argv[1]), float(sys.argv[2])
held = {}
def parent_and_start(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None, None
    return int(fields[1]), fields[19]
def look():
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        its_parent, start = parent_and_start(pid)
        if its_parent != parent or (pid, start) in held or int(pid) == os.getpid():
            continue
        try:
            descriptor = os.pidfd_open(int(pid))
        except ProcessLookupError:
            continue
        # By its start alone: if the parent ended meanwhile, it is another's child now.
        if parent_and_start(pid)[1] == start:
            held[pid, start] = descriptor
        else:
            os.close(descriptor)
try:
    end = os.pidfd_open(parent)
except ProcessLookupError:
    sys.exit()
while os.getppid() == parent:
    look()
    ready = select.select([end, 0], [], [], every_s)[0]
    if 0 in ready:
        look()
        select.select([end], [], [])
for each in held.values():
    try:
        signal.pidfd_send_signal(each, 9)
    except ProcessLookupError:
        pass
"""
_LOOK_S = 0.1


class ChildError(RouterError):
    """A child process did not do what it was started for. `output`: the last lines it printed."""

    def __init__(self, reason: str, output: Sequence[str]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.output = tuple(output)


def die_with_parent(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` (its first an absolute path) as a child of this process, to be
    killed by the kernel when the calling THREAD ends: start it from one that lives long enough.

    A small program instead of a preexec_fn, because code between fork and exec may deadlock in
    a process with threads, and gRPC has them. Where the kernel knows no such thing (not Linux),
    `argv` itself.
    """
    if sys.platform != "linux" or not sys.executable:
        return list(argv)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]


class KilledAfterUs:
    """All processes that are started from this one, by whatever code, until `settle`, and that are
    to end when we do: a small child looks for them, waits for our end, and kills them if it comes
    before `close`, whatever killed us. One that was started within a tenth of a second before our
    end may be left.

    Where the kernel has no descriptors of processes (not Linux), nothing is done.
    """

    def __init__(self) -> None:
        self._watcher: subprocess.Popen[bytes] | None = None
        if sys.platform == "linux" and sys.executable:
            code = [sys.executable, "-I", "-S", "-c", _KILL_AFTER_PARENT]
            # A session of its own: what ends our terminal's processes comes before our end.
            self._watcher = subprocess.Popen(
                [*code, str(os.getpid()), str(_LOOK_S)], stdin=PIPE, start_new_session=True
            )

    def settle(self) -> None:
        """All of them run: stop looking for more. Idempotent."""
        if self._watcher is not None and self._watcher.stdin is not None:
            # A word, not its end alone: who was forked from us has this pipe open, too.
            with contextlib.suppress(OSError), self._watcher.stdin as pipe:
                pipe.write(b"settled")
            self._watcher.stdin = None

    def close(self) -> None:
        """They are on their own again. Idempotent."""
        self.settle()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.kill()
            watcher.wait()


class ChildProcess:
    """A program that runs from `start` to `stop`, on one event loop, and never longer than we.

    Its standard output is read to the end, because a full pipe would stop it; the last lines are
    kept. Its standard error is joined to that with `join_stderr`, else it is ours.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stop_timeout_s: float,
        join_stderr: bool = True,
        own_session: bool = False,
        env: Mapping[str, str] | None = None,
        on_unexpected_end: Callable[[int], None] | None = None,
    ) -> None:
        """`own_session`: a Ctrl-C in our terminal does not reach it, and `stop` also kills what it
        leaves behind of its process group. `env` is added to our environment. `on_unexpected_end`
        is called with the exit code if it ends after it was ready and before `stop`.
        """
        self._command = command
        self._stop_timeout_s = stop_timeout_s
        self._stderr = STDOUT if join_stderr else None
        self._own_session = own_session
        self._env = env or {}
        self._on_unexpected_end = on_unexpected_end
        self._output: deque[str] = deque(maxlen=KEPT_LINES)
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def output(self) -> list[str]:
        """The last lines that it printed."""
        return list(self._output)

    async def start(self, is_ready: Callable[[str], object], timeout_s: float) -> None:
        """Start it, and return once `is_ready`, asked of each line, says yes.

        ChildError if it ends before, or takes longer than `timeout_s`; it is stopped then.
        """
        self._stopping = False
        self._output.clear()
        self._process = await asyncio.create_subprocess_exec(
            *die_with_parent(self._command),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=self._stderr,
            start_new_session=self._own_session,
            env={**os.environ, **self._env},
        )
        ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(self._process, is_ready, ready))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({ready, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise ChildError("ended before it was ready", self._output)
        except TimeoutError:
            await self.stop()
            raise ChildError(f"was not ready within {timeout_s:g} s", self._output) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Terminate it, kill it after `stop_timeout_s`, and wait for its end. Idempotent."""
        process = self._process
        if process is None:
            return
        self._stopping = True
        # Shielded, so that a second Ctrl-C does not leave half of it running.
        ending = asyncio.ensure_future(self._end(process))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            self._kill(process)
            await ending
            raise
        self._process = None

    async def _end(self, process: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(self._stop_timeout_s):
                # Not wait(), which also waits for processes that inherited the pipe.
                while process.returncode is None:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            self._output.append(f"(not stopped within {self._stop_timeout_s:g} s, so killed)")
        self._kill(process)
        await process.wait()
        if self._reading is not None:
            await self._reading

    def _kill(self, process: Process) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._own_session:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()

    async def _read(
        self, process: Process, is_ready: Callable[[str], object], ready: "asyncio.Future[None]"
    ) -> None:
        """Read what it prints to the end."""
        assert process.stdout is not None
        while line := await _read_line(process.stdout):
            text = line.decode(errors="replace").rstrip()
            self._output.append(text)
            if not ready.done() and is_ready(text):
                ready.set_result(None)
        if ready.done() and not self._stopping:
            code = await process.wait()
            if self._on_unexpected_end is not None and not self._stopping:
                self._on_unexpected_end(code)


async def run_to_end(command: Sequence[str], stdin: bytes, timeout_s: float | None = None) -> bytes:
    """Run a program on an input; what it prints. ChildError if it fails, or takes longer."""
    process = await asyncio.create_subprocess_exec(
        *die_with_parent(command), stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(timeout_s):
            printed, errors = await _communicate(process, stdin)
    except TimeoutError:
        raise ChildError(f"took longer than {timeout_s:g} s", ()) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()[-KEPT_LINES:]
        raise ChildError("failed", lines)
    return printed


async def ask_module(
    module: str,
    question: msgspec.Struct,
    kind: type[Answer],
    what: str,
    timeout_s: float | None = None,
) -> Answer:
    """What a module of this name answers, run as a program that reads the question from its
    standard input and prints the answer, both as JSON. RouterError, which begins with `what` it was
    for, if it fails, or takes longer.
    """
    # -P: what lies in the current directory must not take a module's place.
    command = [sys.executable, "-P", "-m", module]
    try:
        printed = await run_to_end(command, msgspec.json.encode(question), timeout_s)
    except ChildError as error:
        text = f"{what} {error.reason}"
        raise RouterError(": ".join((text, *error.output[-1:]))) from None
    return msgspec.json.decode(printed, type=kind)


async def _communicate(process: Process, stdin: bytes) -> tuple[bytes, bytes]:
    """What it prints on both outputs; it may end before it has read its input, or any of it, on
    which uvloop fails in `Process.communicate`."""
    stdin_pipe, printed, errors = process.stdin, process.stdout, process.stderr
    assert stdin_pipe is not None and printed is not None and errors is not None

    async def send_stdin() -> None:
        with contextlib.suppress(RuntimeError, BrokenPipeError, ConnectionResetError):
            stdin_pipe.write(stdin)
            await stdin_pipe.drain()
        stdin_pipe.close()
        # In Python 3.11.2 asyncio logs how the pipe ended, unasked.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await stdin_pipe.wait_closed()

    async with asyncio.TaskGroup() as group:
        group.create_task(send_stdin())
        reading = [group.create_task(each.read()) for each in (printed, errors)]
    await process.wait()
    return reading[0].result(), reading[1].result()


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """The next line; of one that is too long for the stream's buffer, what the buffer has."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)
