"""TrtllmCache: what TensorRT-LLM's events, as its LLM API gives them, say of its caches. Pure."""

from typing import Any

import structlog

from ...kv_events.dialects import EventsRefused, TrtllmEvents
from ..serving import KvEvent
from .cache_mirror import CacheMirror

log = structlog.get_logger(__name__)

Changes = list[tuple[int, list[KvEvent]]]
"""What changed in each rank, in order."""


class TrtllmCache:
    """One engine's ranks. A number that is missing says that the engine's buffer ran over: it sends
    nothing again, so what was known of the rank is forgotten; blocks that it stores later, behind
    blocks that are not known any more, are not published until the engine stores those anew."""

    def __init__(self, block_size: int, dp_size: int = 1) -> None:
        self.mirror = CacheMirror(block_size, dp_size)
        self.total_blocks = 0
        """of a rank, as the engine reported when it made its cache"""
        self.gaps = 0
        """times that events of a rank were lost"""
        self.refused: str | None = None
        """why its events cannot be published at all"""
        self._events = TrtllmEvents(block_size)
        self._last: dict[int, int] = {}  # event id, by rank

    def take(self, events: list[Any]) -> Changes:
        """What some events change; nothing once they are refused."""
        changes: Changes = []
        for event in events:
            if not event or self.refused is not None:
                continue  # the library gives empty ones, too
            try:
                changes += self._take_one(event)
            except (EventsRefused, KeyError, TypeError, ValueError, AttributeError) as error:
                changes += self._refuse(error)
        return [(rank, some) for rank, some in changes if some]

    def _take_one(self, event: dict[str, Any]) -> Changes:
        rank, number = int(event.get("attention_dp_rank") or 0), int(event["event_id"])
        data = event["data"]
        changes: Changes = []
        last = self._last.get(rank)
        if last is not None and number != last + 1:
            self.gaps += 1
            log.warning("KV events were lost", rank=rank, missing=number - last - 1)
            changes.append((rank, self.mirror.clear(rank)))
        self._last[rank] = number
        if data["type"] == "created":
            levels = data.get("num_blocks_per_cache_level") or [0]
            self.total_blocks = max(self.total_blocks, int(levels[0]))
        changes += [
            (run.rank, self.mirror.apply(run.rank, run.events))
            for run in self._events.translate([event])
        ]
        return changes

    def _refuse(self, error: Exception) -> Changes:
        self.refused = f"{type(error).__name__}: {error}"
        log.error("cannot publish the engine's KV events", reason=self.refused)
        return [(rank, self.mirror.clear(rank)) for rank in range(self.mirror.dp_size)]
