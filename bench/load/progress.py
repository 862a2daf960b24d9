"""How far a replay is, on stderr: a bar on a terminal, else a line every few seconds."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .stats import LoadStats

PROGRESS_INTERVAL_S = 0.2
LINE_INTERVAL_S = 5.0
OnStart = Callable[[int, LoadStats], None]


@asynccontextmanager
async def progress_bar(
    label: str, wanted: bool = True, *, line_every_s: float = LINE_INTERVAL_S
) -> AsyncIterator[OnStart | None]:
    """A bar on stderr while the block runs; without a terminal a line each `line_every_s`, which
    has no escape codes. None instead if it is not `wanted`.

    What it yields is to be called with the number of requests and the statistics to watch.
    """
    if not wanted:
        yield None
        return
    drawing: list[asyncio.Task[None]] = []
    # Redrawn from a task, not from rich's thread: the client's latencies are being measured.
    bar = Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failed]} failed"),
        console=Console(stderr=True),
        auto_refresh=False,
        disable=not sys.stderr.isatty(),
    )

    def on_start(total: int, stats: LoadStats) -> None:
        show = (
            _write_lines(label, total, stats, line_every_s) if bar.disable else draw(total, stats)
        )
        drawing.append(asyncio.get_running_loop().create_task(show))

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


async def _write_lines(label: str, total: int, stats: LoadStats, every_s: float) -> None:
    began = monotonic()
    while True:
        await asyncio.sleep(every_s)
        failed = stats.failed + stats.rejected
        print(
            f"{label}: {stats.done} of {total} requests after {monotonic() - began:.0f} s,"
            f" {failed} failed",
            file=sys.stderr,
            flush=True,
        )
