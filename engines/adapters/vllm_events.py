"""VllmEvents: follows the KV events that vLLM publishes over ZMQ, from the first that there is."""

from typing import Any

import msgspec
import structlog

from ...indexer.wire import EngineEvents
from ...kv_events.dialects import EventsEnded, EventsLost, EventsRefused, ZmqEvents
from ...process.supervised import stopped, supervise
from ..serving import KvEvent, OnEvents
from .cache_mirror import CacheMirror

_PLACES = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "block_mm_infos",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
}
"""The fields of an event that is an array, as older engines write it."""

log = structlog.get_logger(__name__)


class VllmEvents:
    """Keeps a mirror. A number that is missing is asked for again, at the replay socket; if it is
    not to be had any more, what was known is forgotten, and the first that there is begins anew."""

    def __init__(self, address: str, replay: str, mirror: CacheMirror, on_events: OnEvents) -> None:
        self._subscriber = ZmqEvents(address, replay)
        self._checks = EngineEvents(mirror.block_size)  # what a router refuses is refused here
        self._mirror = mirror
        self._on_events = on_events
        self._last = 0  # the number of the last batch that was applied
        self.gaps = 0
        """times that events were lost for good"""
        self._task = supervise("engine events", self._follow)

    async def close(self) -> None:
        """Stop following. Idempotent."""
        await stopped(self._task)
        await self._subscriber.close()

    async def _follow(self) -> None:
        asked = False  # for the number that is missing
        while True:
            # 0: of a cache that nothing is known of, all that there is.
            start = self._last + 1 if self._last else 0
            call = self._subscriber.subscribe_kv_events(start)
            try:
                await call.initial_metadata()
                while True:
                    number, payload = await call.read()
                    events = self._decode(payload, number)
                    if events is None:  # a replay would bring it again: go on behind it
                        self._forget(1)
                        self._last += 1
                        continue
                    if not number:  # nothing was published yet
                        continue
                    if number <= self._last:  # of another numbering
                        self._begin_anew()
                        break
                    missing = number - self._last - 1
                    if missing and not asked:
                        asked = True
                        break  # once more, with a replay from the missing one on
                    if missing:
                        self._forget(missing)
                    asked = False
                    self._last = number
                    self._publish(0, self._mirror.apply(0, events))
            except EventsLost:
                self._begin_anew()
            except EventsEnded:
                pass  # once more
            except EventsRefused as error:
                log.error("cannot publish the engine's KV events", reason=str(error))
                self._publish(0, self._mirror.clear(0))
                return
            finally:
                call.cancel()

    def _decode(self, payload: bytes, number: int) -> list[dict[str, Any]] | None:
        """The events, each by its fields; None if the payload cannot be read."""
        try:
            if self._checks.read(payload, number) is None:
                return None
            return [_by_name(event) for event in msgspec.msgpack.decode(payload)[1]]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        except ValueError as reason:
            raise EventsRefused(str(reason)) from None

    def _begin_anew(self) -> None:
        self._forget(0)
        self._last = 0

    def _forget(self, missing: int) -> None:
        self.gaps += 1
        log.warning("KV events were lost", missing=missing)
        self._publish(0, self._mirror.clear(0))

    def _publish(self, rank: int, changes: list[KvEvent]) -> None:
        if changes:
            self._on_events(rank, changes)


def _by_name(event: Any) -> dict[str, Any]:
    if isinstance(event, dict):
        return event
    kind, *values = event
    return {"type": kind, **dict(zip(_PLACES.get(kind, ()), values, strict=False))}
