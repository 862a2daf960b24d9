"""The metrics page: the families of all sources, as text, written a little at a time.

A scrape of a large fleet is some ten thousand lines. Requests that stream through the same event
loop must not wait for all of them: after `SLICE_S` of work other tasks get a turn.
"""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from ..loop_share import answer_share
from .merged import FrontPages, merged
from .table import SLICE_S, Table

LINES_AT_ONCE = 128
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = openmetrics.CONTENT_TYPE_LATEST
_END = b"# EOF\n"


Source = Callable[[], Iterable[Metric | Table | None]]
"""Gives families when called; None where it has none yet and others may have a turn."""


class Rendered(NamedTuple):
    """A page as an HTTP body."""

    body: bytes
    content_type: str
    gzip: bool


class MetricsPage:
    """The families of all sources, in Prometheus' text format or OpenMetrics. On the event loop."""

    def __init__(self, *sources: Source, now: Callable[[], float] = time.perf_counter) -> None:
        self._sources = list(sources)
        self.siblings: Callable[[], Awaitable[FrontPages]] | None = None
        """asked for the families of other processes, which are on the page too"""
        self._now = now
        self._share = answer_share()
        self._lock = asyncio.Lock()
        self._asking = 0
        self._made: dict[tuple[bool, bool], tuple[float, Rendered]] = {}

    def add(self, source: Source) -> None:
        self._sources.append(source)

    async def render(self, accept: str = "", accept_encoding: str = "") -> Rendered:
        """The page as the headers Accept and Accept-Encoding ask for it.

        One is made at a time; who asks meanwhile shares the next one.
        """
        kind = _accepts(accept, "application/openmetrics-text"), _accepts(accept_encoding, "gzip")
        asked = self._now()
        self._asking += 1
        try:
            async with self._lock:
                began, page = self._made.get(kind, (0.0, None))
                if page is None or began < asked:
                    await asyncio.sleep(self._share.wait_s(self._now()))
                    began, page = self._now(), await self._render(*kind)
                    self._made[kind] = began, page
                return page
        finally:
            self._asking -= 1
            if not self._asking:
                self._made.clear()

    def families(self) -> Iterator[Metric | Table]:
        """What a scrape would show now."""
        return (family for family in self.steps() if family is not None)

    def steps(self) -> Iterator[Metric | Table | None]:
        """As `families`, with None where others may have a turn."""
        for source in self._sources:
            yield from source()

    async def _render(self, is_openmetrics: bool, gzip: bool) -> Rendered:
        parts: list[bytes] = []
        packed = zlib.compressobj(1, wbits=31) if gzip else None
        families = self.steps()
        if self.siblings is not None:
            families = merged(families, await self.siblings())
        turn = self._now()
        for text in _texts(families, is_openmetrics):
            if text:
                parts.append(packed.compress(text) if packed else text)
            spent = self._now() - turn
            if spent >= SLICE_S:
                self._share.spent(spent, self._now())
                await asyncio.sleep(self._share.wait_s(self._now()))
                turn = self._now()
        if packed:
            parts.append(packed.flush())
        self._share.spent(self._now() - turn, self._now())
        kind = OPENMETRICS_TYPE if is_openmetrics else TEXT_TYPE
        return Rendered(b"".join(parts), kind, gzip)


def _texts(families: Iterable[Metric | Table | None], is_openmetrics: bool) -> Iterator[bytes]:
    """A page in pieces, each some 0.1 ms of work."""
    for family in families:
        if family is None:
            yield b""
        elif isinstance(family, Table):
            yield from _write_table(family, is_openmetrics)
        else:
            yield _write_family(family, is_openmetrics)
    if is_openmetrics:
        yield _END


class _Family:
    """One family as the collector that prometheus_client asks for."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _write_family(family: Metric, is_openmetrics: bool) -> bytes:
    collector = cast(Any, _Family(family))
    if is_openmetrics:
        return cast(bytes, cast(Any, openmetrics).generate_latest(collector)).removesuffix(_END)
    return exposition.generate_latest(collector)


def _write_table(table: Table, is_openmetrics: bool) -> Iterator[bytes]:
    name = table.name if is_openmetrics or table.kind == "summary" else table.sample_names[0]
    yield f"# HELP {name} {table.help}\n# TYPE {name} {table.kind}\n".encode()
    names = table.sample_names
    for begin in range(0, len(table.labels), LINES_AT_ONCE):
        some = slice(begin, begin + LINES_AT_ONCE)
        rows = zip(table.labels[some], table.values[some], strict=True)
        if table.kind == "summary":
            count, total = names
            lines = [f"{count}{{{of}}} {n}\n{total}{{{of}}} {s}\n" for of, (n, s) in rows]
        else:
            (name,) = names
            lines = [f"{name}{{{of}}} {value}\n" for of, value in rows]
        yield "".join(lines).encode()


def _accepts(header: str, wanted: str) -> bool:
    """Whether a header names `wanted`, and not with a quality of 0."""
    for choice in header.lower().split(","):
        name, *parameters = (part.strip() for part in choice.split(";"))
        if name == wanted:
            return not any(p in ("q=0", "q=0.0", "q=0.00", "q=0.000") for p in parameters)
    return False
