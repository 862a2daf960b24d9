"""The demo for real: its router, engines and event plane are processes, and none outlives it."""

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.polling import until
from support.processes import http_json

from dynamo_router.bench import demo_disagg
from dynamo_router.bench.demo import DemoConfig, run, run_demo
from dynamo_router.bench.results import Output

START_S = 40.0  # generous: the machine may be busy with other things

# A test run in the background of a shell was born deaf to SIGINT, and its children with it.
HEAR_SIGINT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "dynamo_router", *sys.argv[1:]])
"""


def family_of(ancestor: int) -> set[tuple[int, str]]:
    """(pid, start time) of every living process that descends from `ancestor`, zombies aside."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append((int(stat.parent.name), fields[19]))
    found: set[tuple[int, str]] = set()
    waiting = [ancestor]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found.update(children)
        waiting += [pid for pid, _ in children]
    return found


def alive(family: set[tuple[int, str]]) -> list[int]:
    """Those of the processes that still run; the start time tells a reused pid apart."""
    found = []
    for pid, started in family:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[19] == started and fields[0] != "Z":
            found.append(pid)
    return found


async def whole_family_of(ancestor: int) -> set[tuple[int, str]]:
    """Waits for `serve`, its mock engines and its nats-server to be there below `ancestor`."""

    def names() -> str:
        texts = []
        for pid, _ in family_of(ancestor):
            with contextlib.suppress(OSError):
                texts.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        return "\n".join(texts)

    await until(
        lambda: all(part in names() for part in (" serve ", " mocker ", "nats-server --addr")),
        START_S,
    )
    return family_of(ancestor)


def small(**more: object) -> DemoConfig:
    settings = {
        "modes": ("kv",),
        "workers": 2,
        "requests": 12,
        "arrival_speedup": 10.0,
        "start_timeout_s": START_S,
    }
    return DemoConfig(**{**settings, **more})  # type: ignore[arg-type]


def test_it_runs_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo.json"
    assert run(small(json=str(out))) == 0
    shown = capsys.readouterr()
    assert "kv: starting 2 engines and a router" in shown.err
    assert "kv: 12 requests, all answered." in shown.out
    [result] = json.loads(out.read_text())["runs"]
    assert (result["mode"], result["policy"], result["workers"]) == ("kv", "forecast", 2)
    assert (result["requests"], result["errors"], result["rejected"]) == (12, 0, 0)
    assert 0 < result["cached_token_share"] < 1
    assert 1 <= result["balance_max_over_mean"] <= 2
    assert result["details"]["workers_seen"] in (1, 2)


async def test_apart_it_compares_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_disagg, "REQUESTS", 8)
    monkeypatch.setattr(demo_disagg, "SECONDS", 1.0)
    monkeypatch.setattr(demo_disagg, "_program", lambda name: None)  # no etcd: files
    out = tmp_path / "demo.json"
    picture = tmp_path / "stations.svg"
    shown = demo_disagg.DisaggDemo(1, START_S, progress=False, picture=str(picture))
    assert await demo_disagg.run_disagg(shown, Output(str(out)))
    assert alive(family_of(os.getpid())) == []
    result = json.loads(out.read_text())
    moved, checked = result["transferred_bytes"], result["blocks_checked"]
    assert (result["store"], result["queued"] > 0) == ("file", True)
    assert result["transfer"] in ("nixl", "shm")
    assert moved > 0 < checked
    assert (result["kv_corrupt"], result["redelivered"], result["dead_letters"]) == (0, 0, 0)
    assert [run["mode"] for run in result["runs"]] == ["aggregated", "prefill apart"]
    assert [run["errors"] for run in result["runs"]] == [0, 0]
    assert "there is no etcd program" in capsys.readouterr().out
    stations = result["stations"]
    assert {each["station"] for each in stations} == {f"S{n}" for n in range(1, 14)}
    began = [next(e["ms"] for e in stations if e["station"] == f"S{n}") for n in range(1, 14)]
    assert began == sorted(began)
    assert len({each["pid"] for each in stations}) == 3
    assert all(each["function"] in picture.read_text() for each in stations)


async def test_cancelled_in_mid_run_it_leaves_no_process() -> None:
    # Slowed down so much that its requests cannot all have been sent.
    running = asyncio.create_task(run_demo(small(arrival_speedup=0.001), lambda runs: None))
    family = await whole_family_of(os.getpid())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert alive(family) == []


@contextlib.asynccontextmanager
async def started(folder: Path, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command in a process group of its own, as a terminal starts it."""
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HEAR_SIGINT, "demo", *words),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(START_S):
            yield demo
    finally:
        with contextlib.suppress(ProcessLookupError):
            demo.kill()


async def test_watched_it_stays_until_ctrl_c(tmp_path: Path) -> None:
    words = "--watch --mode kv --workers 2 --requests 12 --arrival-speedup 10".split()
    async with started(tmp_path, *words) as demo:
        assert demo.stderr is not None
        said = b""
        while b"still there" not in said:
            said += await demo.stderr.readline()
        address = re.search(rb"dashboard: http://(\S+)/dashboard", said)
        assert address is not None
        told = await http_json(address[1].decode(), "/dashboard/state?requests=0")
        assert len(told["requests"]) == 12
        family = family_of(demo.pid)
        os.killpg(demo.pid, signal.SIGINT)
        shown, _ = await demo.communicate()
    assert demo.returncode == 0
    assert b"kv: 12 requests, all answered." in shown
    assert alive(family) == []


async def test_watched_on_a_terminal_it_is_one_page(tmp_path: Path) -> None:
    words = "--watch --mode round-robin --mode kv --workers 2 --requests 12 --arrival-speedup 10"
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (30, 120))
    os.set_blocking(ours, False)
    seen = b""

    def read() -> bytes:
        nonlocal seen
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                seen += piece
        return seen

    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HEAR_SIGINT, "demo", *words.split()),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=its,
        env={**os.environ, "TERM": "xterm", "DISPLAY": "", "WAYLAND_DISPLAY": ""},
        start_new_session=True,
    )
    os.close(its)
    try:
        await until(lambda: b"kv took" in read(), 2 * START_S)
        addresses = set(re.findall(rb"http://(\S+)/dashboard", seen))
        assert len(addresses) == 2
        for address in addresses:
            found = await http_json(address.decode(), "/dashboard/state?requests=0")
            assert len(found["requests"]) == 12
        family = family_of(demo.pid)
        os.killpg(demo.pid, signal.SIGINT)
        async with asyncio.timeout(START_S):
            shown, _ = await demo.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            demo.kill()
        read()
        os.close(ours)
    assert demo.returncode == 0 and alive(family) == []
    assert seen.index(b"\x1b[?1049h") < seen.index(b"round-robin") < seen.index(b"\x1b[?1049l")
    assert b"Traceback" not in seen
    assert b"kv took" in shown and b"\x1b" not in shown


async def test_ctrl_c_in_a_terminal(tmp_path: Path) -> None:
    """SIGINT to the whole foreground group, as a terminal sends it."""
    async with started(tmp_path, "--arrival-speedup", "0.001") as demo:
        family = await whole_family_of(demo.pid)
        os.killpg(demo.pid, signal.SIGINT)
        _, said = await demo.communicate()
    assert demo.returncode == 130
    assert said.decode().endswith("interrupted\n")
    assert alive(family) == []
