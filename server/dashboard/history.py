"""History: the last 15 minutes of a process in steps of 5 s, each model by itself and all together.

A row is what the counters of /metrics grew by in a step, and gauges at its end: no request is
counted here. Rows of several pools, and of several processes, add up.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...base.clock import Clock
from ...process.supervised import stopped, supervise
from ..metrics import BUCKETS, REQUEST_COUNTS, SECONDS, HttpAnswers

STEP_S = 5.0
KEPT_STEPS = 180
"""15 minutes. A row has some 60 numbers of 8 bytes: 80 kB for each pool, never more."""
HTTP_CLASSES = ("http_ok", "http_4xx", "http_5xx", "http_left")
GAUGES = ("in_flight", "queued")
OF_WORKERS = ("ready", "workers", "kv_used", "kv_blocks")
"""Gauges that every process of a router has for the same workers: of those the largest counts."""
FIELDS = (*HTTP_CLASSES, *REQUEST_COUNTS, *GAUGES, *OF_WORKERS)
"""The numbers of a row, before those of the two histograms (TTFT, ITL), bucket by bucket."""
WIDTH = len(FIELDS) + 2 * BUCKETS
_HTTP = slice(0, len(HTTP_CLASSES))
_OF_POOL = slice(len(HTTP_CLASSES), WIDTH)
_LARGEST = slice(FIELDS.index(OF_WORKERS[0]), FIELDS.index(OF_WORKERS[-1]) + 1)

Row = list[int]
"""The number of its step, how many ms it took, and the numbers of FIELDS and histograms."""
Numbers = npt.NDArray[np.int64]


class PoolCounts(Protocol):
    """What is counted in a pool, and its gauges now."""

    def counts(self) -> Sequence[int]:
        """Until now, in the order of REQUEST_COUNTS, then by bucket of TTFT and ITL."""
        ...

    def gauges(self) -> Sequence[int]:
        """In the order of GAUGES and OF_WORKERS."""
        ...


class Ring:
    """Rows of the newest KEPT_STEPS steps, by the number of their step."""

    def __init__(self, width: int) -> None:
        self._steps = np.full(KEPT_STEPS, -1, dtype=np.int64)
        self._rows = np.zeros((KEPT_STEPS, width), dtype=np.int64)

    def put(self, step: int, row: Numbers) -> None:
        at = step % KEPT_STEPS
        self._steps[at], self._rows[at] = step, row

    def steps(self, since: int) -> Numbers:
        """The numbers of those after `since`, in order."""
        found: Numbers = np.sort(self._steps[self._steps > max(since, -1)])
        return found

    def rows(self, steps: Numbers) -> Numbers:
        """Their rows; zeros for a step that has none."""
        at = steps % KEPT_STEPS
        known = self._steps[at] == steps
        found: Numbers = self._rows[at] * known[:, None]
        return found

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._steps.nbytes


class Growth:
    """What counters grew by, step by step."""

    def __init__(self, width: int) -> None:
        self.ring = Ring(width)
        self._before: Numbers | None = None

    def put(self, step: int, counts: Sequence[int], gauges: Sequence[int] = ()) -> None:
        """`gauges` stand between the first counts and the histograms."""
        now: Numbers = np.array(counts, dtype=np.int64)
        before = np.zeros_like(now) if self._before is None else self._before
        self._before = now
        # A counter that fell is one that began anew.
        grown = np.where(now >= before, now - before, now)
        if not len(gauges):
            self.ring.put(step, grown)
            return
        first = len(REQUEST_COUNTS)
        row = np.concatenate((grown[:first], np.array(gauges, dtype=np.int64), grown[first:]))
        self.ring.put(step, row)


class PoolHistory:
    """The history of one pool."""

    def __init__(self, pool: PoolCounts) -> None:
        self._pool = pool
        self._growth = Growth(WIDTH - len(HTTP_CLASSES))
        self.ring = self._growth.ring

    def put(self, step: int) -> None:
        self._growth.put(step, self._pool.counts(), self._pool.gauges())


LabelledHistories = Callable[[], Iterable[tuple[str, PoolHistory]]]
"""The histories of all pools, each with the name of its model."""


class ProcessHistory:
    """Of all pools of a process and its HTTP listeners, from `start` to `close`."""

    def __init__(self, clock: Clock, http: HttpAnswers) -> None:
        self._now = clock.now
        self._http = http
        self._pools: LabelledHistories = tuple
        self._spans = Growth(1)
        self._began = self._last = clock.now()
        self._step = -1  # the last one that ended
        self._by_model: dict[str, Growth] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, pools: LabelledHistories) -> None:
        """Keep the history of these pools: before `start`."""
        self._pools = pools

    def start(self) -> None:
        self._task = supervise("history", self._run)

    async def close(self) -> None:
        """Idempotent."""
        await stopped(self._task)

    @property
    def uptime_s(self) -> float:
        return self._now() - self._began

    @property
    def nbytes(self) -> int:
        """Of its rows, without those of pools."""
        models = sum(each.ring.nbytes for each in self._by_model.values())
        return self._spans.ring.nbytes + models

    @property
    def models(self) -> list[str]:
        """Those that have a history of their own."""
        named = {model for model, _ in self._pools()} | set(self._by_model)
        return sorted(named - {""})

    def put(self, step: int) -> Iterator[None]:
        """End a step: yields where others may have a turn. Nothing if it has ended already, or a
        later one has: what was counted is the next one's."""
        if step <= self._step:
            return
        self._step, now = step, self._now()
        self._spans.ring.put(step, np.array([max(1, round((now - self._last) * 1e3))]))
        self._last = now
        for model, counts in self._http.by_class().items():
            if model not in self._by_model:
                self._by_model[model] = Growth(len(HTTP_CLASSES))
            self._by_model[model].put(step, counts)
        for _, history in list(self._pools()):
            yield
            history.put(step)

    def rows(self, model: str, since: int) -> list[Row]:
        """Of one model, or of all for an empty name: the steps after `since`."""
        steps = self._spans.ring.steps(since)
        found = np.zeros((len(steps), WIDTH), dtype=np.int64)
        for name, growth in self._by_model.items():
            if model in ("", name):
                found[:, _HTTP] += growth.ring.rows(steps)
        for name, history in self._pools():
            if model in ("", name):
                found[:, _OF_POOL] += history.ring.rows(steps)
        spans = self._spans.ring.rows(steps)
        rows: list[Row] = np.concatenate((steps[:, None], spans, found), axis=1).tolist()
        return rows

    async def _run(self) -> None:
        while True:
            step = int(self._now() // STEP_S)
            # A timer may be early by the clock's resolution.
            while (rest_s := (step + 1) * STEP_S - self._now()) > 0:
                await asyncio.sleep(rest_s)
            for _ in self.put(step):
                await asyncio.sleep(0)


def merged_rows(processes: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of all processes as those of one."""
    found: dict[int, Numbers] = {}
    for rows in processes:
        for step, *numbers in rows:
            row = np.array(numbers, dtype=np.int64)
            if len(row) != 1 + WIDTH:
                continue  # a process of another version
            known = found.get(step)
            if known is None:
                found[step] = row
                continue
            total = known + row
            larger = np.maximum(known, row)
            total[0], total[1:][_LARGEST] = larger[0], larger[1:][_LARGEST]
            found[step] = total
    return [[step, *found[step].tolist()] for step in sorted(found)]


def layout() -> Mapping[str, Any]:
    """How a page reads rows: what stands where, behind the step and its ms."""
    return {
        "step_s": STEP_S,
        "steps": KEPT_STEPS,
        "fields": FIELDS,
        "buckets": BUCKETS,
        "bounds_s": SECONDS,
    }
