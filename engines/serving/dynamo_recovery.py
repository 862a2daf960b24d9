"""The endpoint of one of Dynamo's workers that repeats a rank's KV events.

Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/request_plane`).
"""

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from ...base.envelope import decode_envelope
from ...base.identity import WorkerWithDpRank
from ...indexer.wire import RouterEvent, Stored, StoredBlock, encode_router_event
from ...runtime.request_planes import RequestContext
from ..outbox import StoredRun
from ..publisher import KvEventPublisher


class RankEvents(NamedTuple):
    """Where one rank's events are had again."""

    publisher: KvEventPublisher
    snapshot: Callable[[], Iterable[StoredRun]]


class EventRecovery:
    """Repeats the events of one rank."""

    def __init__(self, worker_id: int, dp_rank: int, events: RankEvents) -> None:
        self._worker = (worker_id, dp_rank)
        self._publisher, self._snapshot = events

    async def answer(self, body: Any, context: RequestContext) -> AsyncGenerator[object, None]:
        asked = (body.get("worker_id"), body.get("dp_rank"))
        if asked != self._worker:
            yield {"Error": f"worker mismatch: asked for {asked}, this is {self._worker}"}
            return
        first, last = body.get("start_event_id"), body.get("end_event_id")
        if first is not None and last is not None and last < first:
            yield {"InvalidRange": {"start_id": first, "end_id": last}}
            return
        await self._publisher.flush()
        newest = self._publisher.next_event_id - 1
        if newest < 0:  # a numbering that begins with 0: no number says that there is nothing
            yield {"Error": "no event was published yet"}
            return
        if first is not None and first > newest:
            about = {"requested_start": first, "requested_end": last, "newest_available": newest}
            yield {"TooNew": about}
            return
        messages = self._publisher.kept_since(first) if first else None
        if messages is None:
            yield {"TreeDump": self._dump(newest)}
        else:
            events = [event for message in messages for event in _events_of(message)]
            wanted = [event for event in events if event["event"]["event_id"] >= first]
            yield {"Events": {"events": wanted, "last_event_id": newest}}

    def _dump(self, newest: int) -> dict[str, Any]:
        worker, events = WorkerWithDpRank(*self._worker), []
        for number, run in enumerate(self._snapshot()):
            blocks = [
                StoredBlock(int(external), int(local))
                for external, local in zip(run.block_hashes, run.local_hashes, strict=True)
            ]
            event = RouterEvent(worker, number, Stored(run.parent_hash, blocks))
            events.append(msgspec.json.decode(encode_router_event(event)))
        return {"events": events, "last_event_id": newest, "reset_scope": "all"}


def _events_of(message: bytes) -> Any:
    return msgspec.msgpack.decode(decode_envelope(message).payload)
