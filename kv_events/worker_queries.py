"""Asks workers of Dynamo's for events that were missed: over their recovery endpoints.

Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/request_plane/worker_kv_query.json`).
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
import structlog

from ..base.envelope import EventEnvelope, encode_envelope
from ..base.identity import WorkerWithDpRank
from ..indexer.event_index import EventIndex
from ..process.supervised import stopped
from ..runtime.event_planes import KV_EVENTS
from ..runtime.request_planes import RequestClient, RequestError
from ..workers.records import PublisherRecord
from .resync_wire import ResyncRequest

AT_ONCE = 16
_NO_ANSWER = (
    RequestError,
    TimeoutError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
ANSWER_TIMEOUT_S = 30.0

log = structlog.get_logger(__name__)


class WorkerQueries:
    """Takes over requests for events of workers that have such an endpoint.

    Their answers go into the index as published events do. A worker that does not answer is
    asked again when the recovery asks again.
    """

    def __init__(
        self,
        index: EventIndex,
        plane: RequestClient,
        sources: Callable[[], Mapping[WorkerWithDpRank, PublisherRecord]],
    ) -> None:
        self._index, self._plane, self._sources = index, plane, sources
        self._running: dict[WorkerWithDpRank, asyncio.Task[None]] = {}
        self.asked = 0
        self.failed = 0

    def ask(self, request: ResyncRequest) -> bool:
        """Whether the worker that it is for is asked this way."""
        if request.worker_id is None or request.dp_rank is None:
            return False
        worker = WorkerWithDpRank(request.worker_id, request.dp_rank)
        source = self._sources().get(worker)
        if source is None or source.recovery is None:
            return False
        if source.recovery.transport not in self._plane.transports:
            return False
        if worker not in self._running and len(self._running) < AT_ONCE:
            name = f"events of {worker.worker_id:x}/{worker.dp_rank}"
            self._running[worker] = asyncio.create_task(self._recover(source, request), name=name)
        return True

    async def close(self) -> None:
        """Wait for no answer any more. Idempotent."""
        for task in list(self._running.values()):
            await stopped(task)

    async def _recover(self, source: PublisherRecord, request: ResyncRequest) -> None:
        worker = source.worker
        self.asked += 1
        first = request.from_event_id
        if request.publisher_id not in (None, source.publisher_id):
            first = None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                good = await self._ask_for(source, first)
                if not good and first is not None:
                    good = await self._ask_for(source, None)
            if good:
                log.info("events recovered", worker=tuple(worker), from_event_id=first)
        except _NO_ANSWER as error:
            self.failed += 1
            log.warning(
                "a worker did not send missed events", worker=tuple(worker), error=str(error)
            )
        finally:
            del self._running[worker]

    async def _ask_for(self, source: PublisherRecord, first: int | None) -> bool:
        """Ask for the events from `first` on, or (None) all that is cached; whether that helped."""
        target, worker = source.recovery, source.worker
        assert target is not None
        body = {
            "worker_id": worker.worker_id,
            "dp_rank": worker.dp_rank,
            "start_event_id": first,
            "end_event_id": None,
            "supports_tree_dump_failed": True,
            "kind": "recovery",
        }
        answer: Any = None
        stream = self._plane.stream(
            target.address, body, transport=target.transport, codec=target.codec
        )
        async with aclosing(stream) as parts:
            async for part in parts:
                answer = part if answer is None else answer
        return self._take_in(source, answer)

    def _take_in(self, source: PublisherRecord, answer: Any) -> bool:
        ((kind, reply),) = answer.items()
        if kind == "TooNew":
            events, last = [], int(reply["newest_available"])
        elif kind in ("Events", "TreeDump"):
            events, last = reply["events"], int(reply["last_event_id"])
        else:
            log.warning("a worker did not send missed events", worker=tuple(source.worker),
                        error=f"{kind}: {str(reply)[:200]}")  # fmt: skip
            return False
        payload = msgspec.msgpack.encode(events)
        message = encode_envelope(EventEnvelope(source.publisher_id, 0, 0, KV_EVENTS, payload))
        return self._index.take_recovered(
            source.worker, message, whole=kind == "TreeDump", last_event_id=last
        )
