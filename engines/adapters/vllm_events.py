"""VllmEvents: follows the KV events that vLLM publishes over ZMQ, from the first that there is."""

import structlog
from google.protobuf.message import DecodeError

from ...kv_events.dialects import EventsEnded, EventsLost, EventsRefused, PulledCall, ZmqEvents
from ...process.supervised import stopped, supervise
from ...workers.trtllm_proto import common_pb
from ..serving import KvEvent, OnEvents
from .cache_mirror import CacheMirror

log = structlog.get_logger(__name__)


class VllmEvents:
    """Keeps a mirror. A number that is missing is asked for again, at the replay socket; if it is
    not to be had any more, what was known is forgotten, and told from the first that there is."""

    def __init__(self, address: str, replay: str, mirror: CacheMirror, on_events: OnEvents) -> None:
        self._subscriber = ZmqEvents(address, replay, mirror.block_size)
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
            call: PulledCall = self._subscriber.subscribe_kv_events(start)
            try:
                await call.initial_metadata()
                while True:
                    batch = await call.read()
                    try:
                        number = common_pb.KvEventBatch.FromString(batch).sequence_number
                    except DecodeError:  # a replay would tell it again: go on behind it
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
                    self._tell(*self._mirror.apply(batch))
            except EventsLost:
                self._begin_anew()
            except EventsEnded:
                pass  # once more
            except EventsRefused as error:
                log.error("the engine's KV events cannot be told", reason=str(error))
                self._tell(0, self._mirror.clear(0))
                return
            finally:
                call.cancel()

    def _begin_anew(self) -> None:
        self._forget(0)
        self._last = 0

    def _forget(self, missing: int) -> None:
        self.gaps += 1
        log.warning("KV events were lost", missing=missing)
        self._tell(0, self._mirror.clear(0))

    def _tell(self, rank: int, changes: list[KvEvent]) -> None:
        if changes:
            self._on_events(rank, changes)
