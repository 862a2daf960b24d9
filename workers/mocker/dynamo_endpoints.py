"""A mock engine as one of Dynamo's workers: its endpoints on a request plane.

Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/request_plane`).
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ...indexer.wire import RouterEvent, Stored, StoredBlock, encode_router_event
from ...runtime.components import EndpointName, Instance
from ...runtime.envelope import decode_envelope
from ...runtime.errors import InvalidRequestError
from ...runtime.identity import WorkerWithDpRank
from ...runtime.request_planes import RequestContext, RequestServer, annotated
from ..discovery import RECOVERY
from ..outbox import StoredRun
from ..publisher import KvEventPublisher
from .dp_engine import DataParallelEngine
from .live import TokenStream
from .messages import DisaggregationRole
from .sampling import EngineRequest

DEFAULT_MAX_TOKENS = 16


class RankEvents(NamedTuple):
    """Where one rank's events are had again."""

    publisher: KvEventPublisher
    snapshot: Callable[[], Iterable[StoredRun]]


class DynamoEndpoints:
    """`generate` and, for each rank, the endpoint that repeats its events; until `close`."""

    def __init__(
        self,
        server: RequestServer,
        host: str,
        name: EndpointName,
        worker_id: int,
        ranks: DataParallelEngine,
        events: Sequence[RankEvents],
        role: DisaggregationRole,
    ) -> None:
        self._server, self._host, self._ranks = server, host, ranks
        self._worker_id, self._role = worker_id, role
        self._paths: list[str] = []
        self.instance = self._serve(name, self._generate)
        self.recovery = [
            self._serve(
                EndpointName(
                    name.namespace, name.component, f"{RECOVERY}{rank.publisher.publisher_id:x}"
                ),
                _Recovery(worker_id, number, rank).answer,
            )
            for number, rank in enumerate(events)
        ]

    def close(self) -> None:
        """Refuse what comes from now on. Idempotent."""
        for path in self._paths:
            self._server.remove(path)

    def _serve(self, name: EndpointName, handler: Any) -> Instance:
        path = f"{self._worker_id:x}/{name.namespace}/{name.component}/{name.endpoint}"
        self._server.add(path, handler)
        self._paths.append(path)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        address = f"{shown}:{self._server.port}/{path}"
        return Instance(name, self._worker_id, "tcp", address, "msgpack")

    async def _generate(self, body: Any, context: RequestContext) -> AsyncGenerator[object, None]:
        await self._ranks.awake()
        request, rank = _engine_request(body, context.id)
        role, prefilled = self._role, body.get("prefill_result")
        if role.hands_over:
            request = replace(request, max_tokens=1, min_tokens=0)
        elif prefilled is not None:
            role.check_handoff(prefilled["disaggregated_params"], len(request.token_ids))
        stream = self._ranks.submit(request, rank)
        try:
            sequence = stream.sequence
            sent = 0
            while True:
                while sent < min(stream.ready, sequence.visible):
                    part: dict[str, Any] = {"token_ids": [sequence.output[sent]]}
                    sent += 1
                    if sent == 1:
                        part["completion_usage"] = _usage(stream, sent)
                    yield annotated(part)
                if stream.done:
                    break
                await stream.wait(stream.ready)
            reason = "cancelled" if stream.aborted else sequence.finish_reason
            last: dict[str, Any] = {"token_ids": [], "finish_reason": reason}
            if role.hands_over:
                handoff = role.handoff(sequence.prompt_len)
                last["disaggregated_params"] = msgspec.to_builtins(handoff)
            yield annotated(last | {"completion_usage": _usage(stream, sent)})
        finally:
            self._ranks.release(stream)


class _Recovery:
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


def _usage(stream: TokenStream, completion_tokens: int) -> dict[str, Any]:
    prompt = stream.sequence.prompt_len
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
        "prompt_tokens_details": {
            "audio_tokens": None,
            "cached_tokens": stream.sequence.cached_tokens or 0,
        },
    }


def _engine_request(body: Any, request_id: str) -> tuple[EngineRequest, int | None]:
    """(the request, the rank that it names). InvalidRequestError if it is no such body."""
    try:
        stop, routing = body["stop_conditions"], body.get("routing") or {}
        sampling = body.get("sampling_options") or {}
        stops = (stop.get(f"stop_token_ids{kind}") or () for kind in ("", "_visible", "_hidden"))
        return (
            EngineRequest(
                request_id=request_id,
                token_ids=np.array(body["token_ids"], dtype=np.uint32),
                max_tokens=int(stop.get("max_tokens") or DEFAULT_MAX_TOKENS),
                min_tokens=int(stop.get("min_tokens") or 0),
                seed=int(sampling.get("seed") or 0),
                stop_token_ids=frozenset(token for ids in stops for token in ids),
                keep_stop_token=bool(stop.get("stop_token_ids_visible")),
                lora_name=routing.get("lora_name"),
                cache_namespace=routing.get("cache_salt"),
            ),
            routing.get("dp_rank"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidRequestError(f"not a request for generate: {error!r}") from None
