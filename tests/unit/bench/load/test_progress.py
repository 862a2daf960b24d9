"""The progress bar: only on a terminal, and gone when it is done."""

import asyncio

import pytest

from dynamo_router.bench.load.progress import progress_bar
from dynamo_router.bench.load.stats import LoadStats


async def test_the_bar_is_only_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    async with progress_bar("replay") as on_start:
        assert on_start is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    async with progress_bar("replay", wanted=False) as on_start:
        assert on_start is None
    written: list[str] = []
    monkeypatch.setattr("sys.stderr.write", written.append, raising=False)
    async with progress_bar("replay") as on_start:
        assert on_start is not None
        on_start(6, LoadStats())
        async with asyncio.timeout(60):
            while "0/6" not in "".join(written):
                await asyncio.sleep(0)
    await asyncio.sleep(0)  # lets the drawing task see that it was cancelled
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
