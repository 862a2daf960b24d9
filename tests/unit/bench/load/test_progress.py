"""Progress: a bar on a terminal, else lines without escape codes; gone when it is done."""

import asyncio
from collections.abc import Callable

import pytest

from dynamo_router.bench.load.progress import progress_bar
from dynamo_router.bench.load.stats import LoadStats, Outcome


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not seen():
            await asyncio.sleep(0)


async def assert_no_task_is_left() -> None:
    await asyncio.sleep(0)  # lets the drawing task see that it was cancelled
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    written: list[str] = []
    monkeypatch.setattr("sys.stderr.write", written.append, raising=False)
    async with progress_bar("replay") as on_start:
        assert on_start is not None
        on_start(6, LoadStats())
        await until(lambda: "0/6" in "".join(written))
    await assert_no_task_is_left()


@pytest.mark.parametrize("terminal", [False, True])
async def test_none_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    async with progress_bar("replay", wanted=False) as on_start:
        assert on_start is None


async def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stats = LoadStats()
    stats.add(Outcome(code="UNAVAILABLE"))
    stats.add(Outcome())
    lines = ""

    def read() -> bool:
        nonlocal lines
        lines += capsys.readouterr().err
        return lines.count("\n") >= 2

    async with progress_bar("kv", line_every_s=0.001) as on_start:
        assert on_start is not None
        on_start(6, stats)
        await until(read)
    await assert_no_task_is_left()
    for line in lines.splitlines():
        assert line.startswith("kv: 2 of 6 requests after ") and line.endswith(" s, 1 failed")
        assert line.isprintable()
