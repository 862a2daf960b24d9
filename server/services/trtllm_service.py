"""The fleet as one engine: trtllm.TrtllmService over gRPC.

Generate carries bytes from end to end. Everything else is rare, and typed.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NoReturn

import structlog

from ...base.errors import InvalidRequestError, NoWorkersError, StatusCode
from ...base.identity import WorkerWithDpRank, as_worker
from ...router.admission import NO_OBJECTIVES, NORMAL, Urgency, read_objectives
from ...router.affinity import read_session
from ...router.pairs import PairDecision
from ...transport.grpc_methods import Method, Methods
from ...transport.http2 import PeerGoneError, ServerCall
from ...workers.channels import Metadata
from ...workers.dialects import DP_RANK_KEY
from ...workers.failures import RETRY_UNITS, EngineCallError
from ...workers.health import HealthMonitor
from ...workers.retention import RETURNING_KEY
from ...workers.trtllm_client import PREFILL_WORKER_ID_KEY, WORKER_ID_KEY
from ...workers.trtllm_proto import SERVICE, pb
from ..access import Caller, current_account, current_caller
from ..dispatch import NO_WORKER, ClientGoneError, Dispatcher, retry_metadata, status_of

PINNED_WORKER_KEY = "x-dynamo-worker-instance-id"
"""Request metadata: the worker that must take it. With x-dynamo-dp-rank, that rank of it."""

PRIORITY_KEY, PRIORITY_JUMP_KEY = "x-dynamo-priority", "x-dynamo-priority-jump"
"""Request metadata, for a request that has to wait: a whole number, higher goes first; and by how
many seconds earlier it counts as having come among its equals."""

MODE_KEY, POLICY_KEY = "x-dynamo-router-mode", "x-dynamo-router-policy"
"""Metadata of the answer to GetModelInfo: how requests find their worker."""

# Trace context goes on to the worker; other metadata concerns this hop only.
_FORWARDED = frozenset(("traceparent", "tracestate", "baggage", RETURNING_KEY))
METADATA_KEYS = _FORWARDED | {PINNED_WORKER_KEY, DP_RANK_KEY, PRIORITY_KEY, PRIORITY_JUMP_KEY}
"""Those of which `read_metadata` makes something."""

MAX_TRAILING_BYTES = 4096
"""An engine's trailing metadata are passed on up to here: clients refuse more than 8 to 16 kB."""

_NOTHING: tuple[Metadata, WorkerWithDpRank | None, Urgency] = (), None, NORMAL

AbortElsewhere = Callable[[str, Caller], Awaitable[tuple[bool, str] | None]]
"""Stops a caller's request in another process; None if it is in flight nowhere."""

log = structlog.get_logger(__name__)


class TrtllmService:
    """Serves the fleet behind a dispatcher. `model_id` replaces the name the engines give."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        monitor: HealthMonitor,
        *,
        model_id: str | None = None,
        mode: str = "",
        policy: str = "",
        abort_elsewhere: AbortElsewhere | None = None,
    ) -> None:
        """`abort_elsewhere` is asked about requests that are not in flight here."""
        self._dispatcher = dispatcher
        self._monitor = monitor
        self._model_id = model_id
        self._abort_elsewhere = abort_elsewhere
        self._about = tuple((k, v) for k, v in ((MODE_KEY, mode), (POLICY_KEY, policy)) if v)
        self.methods: Methods = {f"/{SERVICE}/{name}": m for name, m in self._handlers().items()}

    async def _generate(self, request: bytes, context: ServerCall) -> None:
        try:
            metadata, caller = context.invocation_metadata(), current_caller()
            forwarded, pinned, urgency = _NOTHING
            objectives, session = NO_OBJECTIVES, None
            if metadata:
                forwarded, pinned, urgency = read_metadata(metadata)
                objectives = read_objectives(metadata)
                session = read_session(metadata, caller.name, current_account())
            pair = await self._dispatcher.generate(
                request,
                partial(_write, context),
                put=context.put,
                timeout=context.time_remaining(),
                metadata=forwarded,
                pinned=pinned,
                urgency=urgency,
                objectives=objectives,
                call_metadata=metadata,
                session=session,
                caller=caller,
            )
        except Exception as error:
            await abort_with(context, error)
        context.set_trailing_metadata(_workers_metadata(pair))

    async def _health_check(self, request: Any, context: ServerCall) -> Any:
        ready = self._monitor.any_ready
        return pb.HealthCheckResponse(status="OK" if ready else "no workers ready")

    async def _abort(self, request: Any, context: ServerCall) -> Any:
        request_id, caller = request.request_id, current_caller()
        found = None
        if self._abort_elsewhere is not None and not self._dispatcher.has(request_id, caller):
            found = await self._abort_elsewhere(request_id, caller)
        success, message = found or await self._dispatcher.abort(request_id, caller)
        return pb.AbortResponse(success=success, message=message)

    async def _get_model_info(self, request: Any, context: ServerCall) -> Any:
        await self._require_ready(context)
        await context.send_initial_metadata(self._about)
        info = self._monitor.facts.as_message(pb.GetModelInfoResponse)
        if self._model_id is not None:
            info.model_id = self._model_id
        return info

    async def _get_server_info(self, request: Any, context: ServerCall) -> Any:
        await self._require_ready(context)
        return self._monitor.facts.as_message(pb.GetServerInfoResponse)

    async def _embed(self, request: bytes, context: ServerCall) -> bytes:
        try:
            timeout, forwarded = context.time_remaining(), _forwarded(context)
            return await self._dispatcher.plain.embed(request, timeout, forwarded)
        except Exception as error:
            await abort_with(context, error)

    async def _get_tokenizer(self, request: bytes, context: ServerCall) -> None:
        try:
            await self._dispatcher.plain.get_tokenizer(
                request, partial(_write, context), context.time_remaining(), _forwarded(context)
            )
        except Exception as error:
            await abort_with(context, error)

    async def _subscribe_kv_events(self, request: bytes, context: ServerCall) -> None:
        await context.abort(
            StatusCode.UNIMPLEMENTED,
            "a router has no KV cache of its own; subscribe to its workers",
        )

    async def _require_ready(self, context: ServerCall) -> None:
        if not self._monitor.any_ready:
            await abort_with(context, NoWorkersError(NO_WORKER))

    def _handlers(self) -> dict[str, Method]:
        return {
            "Generate": Method(self._generate),
            "HealthCheck": _unary(self._health_check, pb.HealthCheckRequest),
            "Abort": _unary(self._abort, pb.AbortRequest),
            "GetModelInfo": _unary(self._get_model_info, pb.GetModelInfoRequest),
            "GetServerInfo": _unary(self._get_server_info, pb.GetServerInfoRequest),
            "Embed": Method(self._embed),
            "GetTokenizer": Method(self._get_tokenizer),
            "SubscribeKvEvents": Method(self._subscribe_kv_events),
        }


def _workers_metadata(pair: PairDecision) -> tuple[tuple[str, str], ...]:
    """Which workers answered, as metadata."""
    metadata = _worker_metadata(pair.decode.worker)
    if pair.prefill is not None:
        metadata += ((PREFILL_WORKER_ID_KEY, str(pair.prefill.worker.worker_id)),)
    return metadata


@lru_cache(maxsize=4096)
def _worker_metadata(worker: WorkerWithDpRank) -> tuple[tuple[str, str], ...]:
    """Which worker answered, as metadata."""
    metadata: tuple[tuple[str, str], ...] = ((WORKER_ID_KEY, str(worker.worker_id)),)
    if worker.dp_rank:
        metadata += ((DP_RANK_KEY, str(worker.dp_rank)),)
    return metadata


async def abort_with(context: ServerCall, error: Exception) -> NoReturn:
    """End a call with an error's status; log the error if it is ours."""
    code, details = status_of(error)
    own: tuple[tuple[str, str | bytes], ...] = ()
    if isinstance(error, ClientGoneError):
        # No client is there to get it.
        raise asyncio.CancelledError from error
    if isinstance(error, EngineCallError):
        own = tuple(pair for pair in error.trailing_metadata() if pair[0] not in RETRY_UNITS)
        if sum(len(key) + len(value) for key, value in own) > MAX_TRAILING_BYTES:
            own = ()
    elif code is StatusCode.INTERNAL:
        log.error("request failed", exc_info=error)
    await context.abort(code, details, (*own, *retry_metadata(error)))


async def _write(context: ServerCall, message: bytes) -> None:
    """Pass a message to the client; ClientGoneError if it has left."""
    try:
        await context.write(message)
    except PeerGoneError as error:
        raise ClientGoneError("the client went away") from error


def _forwarded(context: ServerCall) -> Metadata:
    """What of a call's metadata goes on to the worker."""
    metadata = context.invocation_metadata()
    return [(key, value) for key, value in metadata if _goes_on(key, value)]


def _goes_on(key: str, value: str | bytes) -> bool:
    """Whether metadata concerns the worker. What cannot be sent on is left out: a call to the
    worker would fail of it, as if that were the worker's fault."""
    if key not in _FORWARDED:
        return False
    return isinstance(value, str) and value.isascii() and value.isprintable()


def read_metadata(
    metadata: Iterable[tuple[str, str | bytes]] | None,
) -> tuple[Sequence[tuple[str, str | bytes]], WorkerWithDpRank | None, Urgency]:
    """What of a request's metadata goes on to the worker, which worker it asks for, and when.
    InvalidRequestError if it makes no sense."""
    forwarded: list[tuple[str, str | bytes]] = []
    urgency = NORMAL
    worker_id: Any = None
    rank: Any = None
    for key, value in metadata or ():
        if key not in METADATA_KEYS:
            continue
        if _goes_on(key, value):
            forwarded.append((key, value))
        elif key == PINNED_WORKER_KEY:
            worker_id = value
        elif key == DP_RANK_KEY:
            rank = value
        elif key not in _FORWARDED:
            urgency = _read_urgency(urgency, key, value)
    if worker_id is None:
        if rank is not None:
            raise InvalidRequestError(
                f"{DP_RANK_KEY} without {PINNED_WORKER_KEY}: of which worker?"
            )
        return forwarded, None, urgency
    try:
        dp_rank = 0 if rank is None else int(rank)
        return forwarded, as_worker((int(worker_id), dp_rank)), urgency
    except ValueError:
        given = f"{worker_id!r}" if rank is None else f"{worker_id!r}, rank {rank!r}"
        raise InvalidRequestError(f"{PINNED_WORKER_KEY} names no worker: {given}") from None


def _read_urgency(urgency: Urgency, key: str, value: str | bytes) -> Urgency:
    try:
        if key == PRIORITY_KEY:
            return replace(urgency, priority=int(value))
        jump = float(value)
    except ValueError:
        raise InvalidRequestError(f"{key} is no number: {value!r}") from None
    if not math.isfinite(jump):
        raise InvalidRequestError(f"{key} is not finite: {value!r}")
    return replace(urgency, jump=jump)


def _unary(answer: Callable[[Any, ServerCall], Any], request: Any) -> Method:
    return Method(answer, request.FromString, _serialize)


def _serialize(message: Any) -> bytes:
    body: bytes = message.SerializeToString()
    return body
