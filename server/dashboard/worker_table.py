"""The workers with their load, caches and event sources, sent as what has changed since."""

import asyncio
from collections import OrderedDict
from typing import Any

from ...base.clock import Clock
from ...router.kv_router import KvRouter
from ...router.views import WorkerView
from ..loop_share import TimeShare
from .request_journal import worker_key

SHARE = 0.01
"""Of the event loop's time, at most, that reading the workers takes."""
LEAST_S = 0.5
KEPT_DEPARTURES = 4096
ANSWERING = ("ready", "draining", "unregistered")
"""States of workers whose event source can be trusted for what it says. What another one has in its
cache by now is not known: its trust is UNKNOWN."""
UNKNOWN = "unknown"


class WorkerTable:
    """All registered ranks, as they were at the last look.

    Reading them takes at most SHARE of the time, however many look, and a page that looks again
    gets only rows that have changed.
    """

    def __init__(self, router: KvRouter, clock: Clock) -> None:
        self._router = router
        self._now = clock.now
        self._rows: dict[str, dict[str, Any]] = {}
        self._changed: dict[str, int] = {}  # the version that brought each row
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._share = TimeShare(SHARE, least_s=LEAST_S)
        self._reading = asyncio.Lock()
        self.version = 0

    async def since(self, version: int) -> dict[str, Any]:
        """What changed after `version`, and the version that this is. All rows for version 0, or
        one that is too old or of another process."""
        async with self._reading:
            if self._share.is_due(self._now()):
                await self._read()
        if version > self.version or len(self._gone) == KEPT_DEPARTURES:
            version = 0
        rows = [self._rows[key] for key, changed in self._changed.items() if changed > version]
        gone = [key for key, left in self._gone.items() if left > version]
        return {
            "version": self.version,
            "all": version == 0,
            "count": len(self._rows),
            "rows": rows,
            "gone": gone,
        }

    async def _read(self) -> None:
        took, now = 0.0, self._now()
        version, seen = self.version + 1, set[str]()
        steps = self._router.workers_in_steps()
        while True:
            self._share.begin()
            views = next(steps, None)
            if views is None:
                break
            for view in views:
                key = worker_key(view.worker)
                seen.add(key)
                row = self._row(key, view, now)
                if self._rows.get(key) != row:
                    self._rows[key] = row
                    self._changed[key] = version
                    self._gone.pop(key, None)
            took += self._share.lap()
            await asyncio.sleep(0)
        for key in self._rows.keys() - seen:
            del self._rows[key], self._changed[key]
            self._gone[key] = version
            while len(self._gone) > KEPT_DEPARTURES:
                self._gone.popitem(last=False)
        self.version = version
        self._share.spent(took, self._now())

    def _row(self, key: str, view: WorkerView, now: float) -> dict[str, Any]:
        registry = self._router.registry
        entry = registry.entry(view.worker.worker_id)
        return {
            "worker": key,
            "number": registry.find(view.worker),
            "address": view.address,
            "state": view.state,
            "reason": view.reason,
            "sits_out": entry is not None and entry.inhibited_until > now,
            "weight": view.weight,
            "dialect": view.dialect,
            "origin": view.origin,
            "source": view.event_source or None,
            "trust": view.event_source_state if view.state in ANSWERING else UNKNOWN,
            "cached_blocks": view.indexed_blocks,
            "lower_blocks": sum(view.lower_tier_blocks),
            "total_blocks": None if entry is None else entry.total_kv_blocks,
            "active_blocks": view.active_blocks,
            "prefill_tokens": view.active_prefill_tokens,
            "requests": view.active_requests,
            "most_requests": None if entry is None else entry.max_num_seqs,
        }
