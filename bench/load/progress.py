"""The progress bar of a replay, on stderr."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .stats import LoadStats

PROGRESS_INTERVAL_S = 0.2
OnStart = Callable[[int, LoadStats], None]


@asynccontextmanager
async def progress_bar(label: str, wanted: bool = True) -> AsyncIterator[OnStart | None]:
    """A bar on stderr while the block runs; None instead, if that is no terminal or not `wanted`.

    What it yields is to be called with the number of requests and the statistics to watch.
    """
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    # Redrawn from a task, not from rich's thread: the client's latencies are being measured.
    bar = Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failed]} failed"),
        console=Console(stderr=True),
        auto_refresh=False,
    )
    drawing: list[asyncio.Task[None]] = []

    def on_start(total: int, stats: LoadStats) -> None:
        drawing.append(asyncio.get_running_loop().create_task(draw(total, stats)))

    async def draw(total: int, stats: LoadStats) -> None:
        task = bar.add_task(label, total=total, failed=0)
        while True:
            bar.update(task, completed=stats.done, failed=stats.failed + stats.rejected)
            bar.refresh()
            await asyncio.sleep(PROGRESS_INTERVAL_S)

    with bar:
        try:
            yield on_start
        finally:
            for task in drawing:
                task.cancel()
