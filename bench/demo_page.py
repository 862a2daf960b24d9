"""What `demo --watch` shows on a terminal: all ways of routing side by side, on one page."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .load import LoadStats
from .results import Run

REDRAW_S = 0.5
NARROW = 56
"""Columns of a terminal below which the ways stand under each other."""


@dataclass(slots=True)
class WayShown:
    """One way of routing, from its turn on."""

    mode: str
    starts: bool = False
    dashboard: str = ""
    total: int = 0
    stats: LoadStats | None = None
    began: float = 0.0
    run: Run | None = None

    def so_far(self, now: float) -> Run | None:
        """Its figures; None before its requests are sent."""
        if self.run is not None or self.stats is None:
            return self.run
        return self.stats.run(max(1e-9, now - self.began), mode=self.mode)

    def state(self, now: float) -> str:
        if self.run is not None:
            return f"done in {self.run.wall_s:.0f} s"
        if self.stats is not None:
            return f"running, {now - self.began:.0f} s"
        return "starts" if self.starts else "waits for its turn"


class DemoPage:
    """The alternate screen of a terminal, from `async with` to its end. What was on the terminal
    before is there again afterwards."""

    def __init__(self, modes: Sequence[str], title: str, console: Console | None = None) -> None:
        self.ways = [WayShown(mode) for mode in modes]
        self._title = title
        self.verdict = ""
        self._console = console or Console(stderr=True)
        # Redrawn from a task, not from rich's thread: the client's latencies are being measured.
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._live.start()
        self._task = asyncio.create_task(self._redraw())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._live.stop()

    def start(self, number: int) -> None:
        """The router of a way is started."""
        self.ways[number].starts = True

    def show_dashboard(self, number: int, url: str) -> None:
        """It is there."""
        self.ways[number].dashboard = url

    def load(self, number: int, total: int, stats: LoadStats) -> None:
        """Its requests are being sent."""
        way = self.ways[number]
        way.total, way.stats, way.began = total, stats, monotonic()

    def end(self, number: int, run: Run) -> None:
        self.ways[number].run = run

    def content(self, width: int) -> RenderableType:
        """The page for a terminal of this width."""
        narrow = width < NARROW + 22 * (len(self.ways) - 2)
        groups = [[way] for way in self.ways] if narrow else [self.ways]
        below = Text(self.verdict or "Each way gets the same requests and new engines.")
        ends = Text("Ctrl-C ends it.", style="dim")
        return Group(Text(self._title, style="bold"), *map(_table, groups), below, ends)

    async def _redraw(self) -> None:
        while True:
            self._live.update(self.content(self._console.size.width), refresh=True)
            await asyncio.sleep(REDRAW_S)


def watches_on_terminal() -> bool:
    """Whether there is a terminal that can show a page."""
    return sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal


_FIGURES: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("failed", lambda run: str(run.errors + run.rejected)),
    ("tokens from caches", lambda run: _number(run.cached_token_share, 100, " %")),
    ("TTFT, mean", lambda run: _number(run.ttft_ms.mean, 1, " ms")),
    ("TTFT, p99", lambda run: _number(run.ttft_ms.p99, 1, " ms")),
    ("ITL, mean", lambda run: _number(run.itl_ms.mean, 1, " ms")),
    ("output tokens/s", lambda run: _number(run.output_tokens_per_s)),
)


def _table(ways: Sequence[WayShown]) -> Table:
    now = monotonic()
    table = Table(expand=True, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True, ratio=2)
    for way in ways:
        table.add_column(way.mode, ratio=3, overflow="fold")
    table.add_row("", *(way.state(now) for way in ways))
    table.add_row("", *(ProgressBar(way.total or 1, _done(way)) for way in ways))
    sent = (f"{_done(way)} of {way.total}" if way.total else "-" for way in ways)
    table.add_row("requests", *sent)
    runs = [way.so_far(now) for way in ways]
    for name, figure in _FIGURES:
        table.add_row(name, *("-" if run is None else figure(run) for run in runs))
    table.add_row("dashboard", *(way.dashboard or "-" for way in ways))
    return table


def _done(way: WayShown) -> int:
    return way.total if way.run is not None else 0 if way.stats is None else way.stats.done


def _number(value: float | None, times: float = 1, unit: str = "") -> str:
    return "-" if value is None else f"{value * times:,.0f}{unit}"
