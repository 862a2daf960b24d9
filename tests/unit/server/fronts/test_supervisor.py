"""Processes that are kept running end with the router, also one that hangs or cannot start."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from support.polling import until, wait_until
from support.processes import alive

from dynamo_router.base.backoff import Backoff
from dynamo_router.base.clock import SystemClock
from dynamo_router.process.child_process import ChildProcess, die_with_parent
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.fronts import supervisor
from dynamo_router.server.fronts.kept_child import HANG_LOOKS, KeptChild, RestartSchedule
from dynamo_router.server.fronts.process_folder import ProcessFolder
from dynamo_router.server.fronts.supervisor import Supervisor

READY = "print('dynamo-router front 0 ready', flush=True)\n"
DEAF = "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
WAIT = "import time\ntime.sleep(600)\n"


def kept(program: str) -> KeptChild:
    """A child that runs this instead of our command, and is started again at once."""
    made = KeptChild("front 0", {}, 20.0, SystemClock())
    made._child = ChildProcess(
        [sys.executable, "-c", program],
        stop_timeout_s=20.0,
        on_unexpected_end=made._on_end,
    )
    made._schedule = RestartSchedule(Backoff(first=0.001, cap=0.001))
    return made


async def test_a_front_that_hangs_is_killed_when_the_router_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 0.05)
    whole = Supervisor(ServeConfig())
    whole._children.append(kept(DEAF + READY + WAIT))
    await whole._children[0].start()
    pid = whole._children[0]._child.pid
    assert pid is not None
    await asyncio.wait_for(whole.drain(0.0), 20)
    await until(lambda: not alive(pid))  # by the drain alone
    await asyncio.wait_for(whole.close(), 20)


async def test_one_that_the_system_cannot_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = kept(READY + WAIT)
    await child.start()
    begin, tried = child._child.start, 0

    async def start(*words: object) -> None:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise BlockingIOError("no process for now")
        await begin(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(child._child, "start", start)
    child._leaving = False
    assert child._child.pid is not None
    await child._child.stop()
    child._on_end(1)
    await until(lambda: tried == 3 and child._child.pid is not None)
    await child.stop()


async def test_one_that_is_not_running_is_not_started_to_be_ended() -> None:
    child = kept(READY + "import sys\nsys.exit(1)\n")
    child._schedule = RestartSchedule(Backoff(first=0.05, cap=0.05))
    await child.start()
    await child.ended()
    started = child._child.output
    child.leave(signal.SIGTERM)
    await asyncio.wait_for(child.ended(), 20)
    assert child._task is not None
    await asyncio.wait_for(child._task, 20)
    assert child.has_ended and child._child.pid is None and child._child.output == started
    await child.stop()


async def test_one_whose_end_was_not_heard_of_yet_takes_no_signal() -> None:
    child = kept(READY + WAIT)
    await child.start()
    pid = child._child.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))  # without a turn of the event loop
    for _ in range(HANG_LOOKS + 1):
        child.look(1)
    child.leave(signal.SIGTERM)
    await child.ended()
    await child.stop()


async def test_one_that_hangs_is_asked_where_and_then_killed_and_started_again() -> None:
    # Not by print: it may be asked while it still prints that it is ready.
    says = "import os\nsignal.signal(signal.SIGUSR2, lambda *_: os.write(1, b'asked\\n'))\n"
    child = kept(DEAF + says + READY + WAIT)
    await child.start()
    pid = child._child.pid
    for count in range(20):  # it lives
        child.look(count)
    for _ in range(HANG_LOOKS - 1):
        child.look(19)
    await until(lambda: child._child.output[-1:] == ["asked"])
    assert child._child.pid == pid
    child.look(20)  # it was only slow
    for _ in range(HANG_LOOKS):
        assert child._child.pid == pid
        child.look(20)
    await until(lambda: child._child.pid not in (None, pid))
    await child.stop()
    child.look(20)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")
async def test_the_folder_of_a_router_that_was_killed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = ProcessFolder()
    program = (
        f"import tempfile\ntempfile.tempdir = {str(tmp_path)!r}\n"
        "from dynamo_router.server.fronts.process_folder import ProcessFolder\n"
        "print('made', ProcessFolder().path, flush=True)\n"
    ) + WAIT
    other = await asyncio.create_subprocess_exec(
        *die_with_parent([sys.executable, "-c", program]), stdout=asyncio.subprocess.PIPE
    )
    assert other.stdout is not None
    theirs = Path((await other.stdout.readline()).decode().split()[1])
    ProcessFolder().remove()
    assert mine.path.is_dir() and theirs.is_dir()
    (theirs / "front-0.sock").touch()
    other.kill()
    await other.wait()
    ProcessFolder().remove()
    assert not theirs.exists()
    mine.remove()
    mine.remove()
    assert list(tmp_path.iterdir()) == []
