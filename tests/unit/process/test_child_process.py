"""Child processes: ready or an error with their output, stopped for certain, gone with us."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop
from support.polling import until
from support.processes import alive

from dynamo_router.base.errors import RouterError
from dynamo_router.process.child_process import (
    _KILL_AFTER_PARENT,
    ChildError,
    ChildProcess,
    KilledAfterUs,
    die_with_parent,
    run_to_end,
)

pytestmark = pytest.mark.usefixtures("leaves_nothing")

WAIT = "import time\ntime.sleep(600)\n"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")


def child(program: str, **options: bool) -> ChildProcess:
    command = [sys.executable, "-u", "-c", program]
    return ChildProcess(command, stop_timeout_s=20.0, **options)


async def test_it_runs_from_start_to_stop() -> None:
    lines: list[str] = []

    def is_ready(line: str) -> bool:
        lines.append(line)
        return line == "ready"

    running = child("print('one')\nprint('ready')\n" + WAIT)
    await running.start(is_ready, 20.0)
    pid = running.pid
    assert lines == running.output == ["one", "ready"]
    assert running.running and pid is not None and alive(pid)
    await running.stop()
    await running.stop()
    assert not running.running and running.pid is None and not alive(pid)


async def test_one_that_ends_early_is_quoted() -> None:
    dying = child("import sys\nprint('out of order', file=sys.stderr)\nsys.exit(3)")
    with pytest.raises(ChildError, match="ended before it was ready") as caught:
        await dying.start(lambda line: False, 20.0)
    assert caught.value.output == ("out of order",)
    assert isinstance(caught.value, RouterError)
    assert not dying.running


async def test_one_that_is_never_ready_is_stopped() -> None:
    slow = child(WAIT)
    with pytest.raises(ChildError, match=r"was not ready within 0.05 s"):
        await slow.start(lambda line: True, 0.05)
    assert not slow.running


async def test_one_that_does_not_listen_is_killed() -> None:
    deaf = ChildProcess(
        [sys.executable, "-u", "-c", DEAF + "print('ready')\n" + WAIT], stop_timeout_s=0.05
    )
    await deaf.start(bool, 20.0)
    pid = deaf.pid
    await deaf.stop()
    assert pid is not None and not alive(pid)
    assert deaf.output[-1] == "(not stopped within 0.05 s, so killed)"


async def test_a_stop_that_is_cancelled_still_ends_it() -> None:
    deaf = child(DEAF + "print('ready')\n" + WAIT)
    await deaf.start(bool, 20.0)
    pid = deaf.pid
    stopping = asyncio.create_task(deaf.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert pid is not None and not alive(pid)


async def test_what_it_leaves_in_its_session_is_killed_too() -> None:
    grandchild = f"subprocess.Popen([sys.executable, '-c', {WAIT!r}])"
    parent = child(f"import subprocess, sys\nprint({grandchild}.pid)\n{WAIT}", own_session=True)
    await parent.start(bool, 20.0)
    pid = int(parent.output[0])
    assert alive(pid)
    await parent.stop()
    await until(lambda: not alive(pid))


async def test_an_end_nobody_asked_for_is_told() -> None:
    codes: list[int] = []
    command = [sys.executable, "-u", "-c", "print('ready')\n" + WAIT]
    running = ChildProcess(command, stop_timeout_s=20.0, on_unexpected_end=codes.append)
    await running.start(bool, 20.0)
    assert running.pid is not None
    os.kill(running.pid, signal.SIGKILL)
    await until(lambda: codes)
    assert codes == [-signal.SIGKILL]
    await running.start(bool, 20.0)
    await running.stop()
    assert codes == [-signal.SIGKILL], "of the second end it was we who asked for it"


async def test_much_output_neither_stops_it_nor_stays() -> None:
    line = "x" * 1000
    talker = child(f"for _ in range(500): print('{line}')\nprint('y' * 200_000)\nprint('ready')")
    await talker.start(lambda text: text == "ready", 20.0)
    assert len(talker.output) == 30
    await talker.stop()


async def test_a_program_run_to_its_end() -> None:
    command = [sys.executable, "-c", "import sys\nprint(sys.stdin.read()[::-1], end='')"]
    assert await run_to_end(command, b"abc", 20.0) == b"cba"
    with pytest.raises(ChildError, match="failed") as caught:
        await run_to_end([sys.executable, "-c", "raise SystemExit('no luck')"], b"", 20.0)
    assert caught.value.output == ("no luck",)
    with pytest.raises(ChildError, match="took longer than 0.05 s"):
        await run_to_end([sys.executable, "-c", WAIT], b"", 0.05)


def test_a_program_that_ends_before_it_was_told_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def ask() -> None:
        for _ in range(30):  # one in five meets a pipe that is closed already
            with pytest.raises(ChildError, match="failed"):
                await run_to_end([sys.executable], b"x" * 100_000, 20.0)

    uvloop.run(ask())


@LINUX
def test_the_child_of_a_parent_that_is_gone_does_not_start() -> None:
    argv = die_with_parent(["/bin/true"])
    assert subprocess.run(argv).returncode == 0
    argv[argv.index(str(os.getpid()))] = "1"
    assert subprocess.run(argv).returncode == 1


GUARDING = """
import os, subprocess, sys, time
from dynamo_router.process.child_process import KilledAfterUs
WAIT = [sys.executable, "-c", "import time; time.sleep(600)"]
before = subprocess.Popen(["/bin/true"])
guard = KilledAfterUs()
before.wait()
started = subprocess.Popen(WAIT).pid, os.fork()
if not started[1]:
    time.sleep(600)
if sys.argv[1] == "settled":
    guard.settle()
print(*started, guard._watcher.pid, flush=True)
time.sleep(600)
"""


@LINUX
@pytest.mark.parametrize("when", ["settled", "while it starts more"])
async def test_what_others_started_for_us_ends_with_us(when: str) -> None:
    ours = subprocess.Popen([sys.executable, "-c", GUARDING, when], stdout=subprocess.PIPE)
    assert ours.stdout is not None
    with ours.stdout as told:
        *others, watcher = map(int, told.readline().split())
    assert all(map(alive, (*others, watcher)))
    try:
        await until(lambda: descriptors_of_processes(watcher) >= 1 + len(others))
    finally:
        ours.kill()
        ours.wait()
    await until(lambda: not any(map(alive, (*others, watcher))))


# Its parent ends between the watcher's two looks at a child; 9 is SIGKILL.
ENDS_BETWEEN = """
import os
open_one, parent = os.pidfd_open, os.getppid()
def open_and_end(pid):
    descriptor = open_one(pid)
    if pid != parent and os.getppid() == parent:
        print(pid, os.getpid(), flush=True)
        os.kill(parent, 9)
        while os.getppid() == parent:
            pass
    return descriptor
os.pidfd_open = open_and_end
"""
PARENT_OF_BOTH = """
import os, subprocess, sys, time
WAIT = "import time; time.sleep(600)"
argv = [[WAIT], [sys.argv[1], str(os.getpid()), "0.01"]]
both = [subprocess.Popen([sys.executable, "-c", *each], stdin=subprocess.PIPE) for each in argv]
time.sleep(600)
"""


@LINUX
async def test_a_child_that_is_found_as_we_end_is_killed_too() -> None:
    argv = [sys.executable, "-c", PARENT_OF_BOTH, ENDS_BETWEEN + _KILL_AFTER_PARENT]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as ours:
        assert ours.stdout is not None
        both = [int(each) for each in ours.stdout.readline().split()]
        ours.wait(20)
    assert len(both) == 2
    try:
        await until(lambda: not any(map(alive, both)), 20.0)
    finally:
        for pid in filter(alive, both):
            os.kill(pid, signal.SIGKILL)


def descriptors_of_processes(pid: int) -> int:
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(each) == "anon_inode:[pidfd]"
    return found


@LINUX
@pytest.mark.parametrize("pid", [1, 0], ids=["it is not ours any more", "it is gone"])
def test_a_watcher_whose_parent_is_gone_ends(pid: int) -> None:
    if not pid:
        with subprocess.Popen(["/bin/true"]) as gone:
            pid = gone.pid
    argv = [sys.executable, "-c", _KILL_AFTER_PARENT, str(pid), "0.01"]
    subprocess.run(argv, check=True, timeout=20, stdin=subprocess.DEVNULL)


@LINUX
async def test_what_is_let_go_of_is_left_alone() -> None:
    guard = KilledAfterUs()
    watcher = guard._watcher
    assert watcher is not None
    with subprocess.Popen([sys.executable, "-c", WAIT]) as other:
        try:
            await until(lambda: descriptors_of_processes(watcher.pid) >= 2)
            guard.settle()
            guard.settle()
            guard.close()
            guard.close()
            assert other.poll() is None
        finally:
            other.kill()
