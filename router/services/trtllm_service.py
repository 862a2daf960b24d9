"""The fleet as one engine: trtllm.TrtllmService over gRPC. `serve` mounts it.

Generate carries bytes from end to end. Everything else is rare, and typed.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import grpc
import structlog
from grpc import aio

from ...runtime.errors import InvalidRequestError, NoWorkersError
from ...runtime.identity import WorkerWithDpRank, as_worker
from ...workers.health import HealthMonitor
from ...workers.trtllm_client import WORKER_ID_KEY, TrtllmClient
from ...workers.trtllm_proto import SERVICE, pb
from ..admission import NORMAL, Urgency
from ..dispatch import DP_RANK_KEY, Dispatcher, status_of

PINNED_WORKER_KEY = "x-dynamo-worker-instance-id"
"""Request metadata: the worker that must take it. With x-dynamo-dp-rank, that rank of it."""

PRIORITY_KEY, PRIORITY_JUMP_KEY = "x-dynamo-priority", "x-dynamo-priority-jump"
"""Request metadata, for a request that has to wait: a whole number, higher goes first; and by how
many seconds earlier it counts as having come among its equals."""

MODE_KEY, POLICY_KEY = "x-dynamo-router-mode", "x-dynamo-router-policy"
"""Metadata of the answer to GetModelInfo: how requests find their worker."""

# Trace context goes on to the worker; other metadata concerns this hop only.
_FORWARDED = frozenset(("traceparent", "tracestate", "baggage"))

Context = aio.ServicerContext[Any, Any]

log = structlog.get_logger(__name__)


class TrtllmService(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in stubs only
    """Serves the fleet behind a dispatcher. `model_id` replaces the name the engines give."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        fleet: HealthMonitor,
        *,
        model_id: str | None = None,
        mode: str = "",
        policy: str = "",
    ) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._model_id = model_id
        self._about = tuple((k, v) for k, v in ((MODE_KEY, mode), (POLICY_KEY, policy)) if v)
        self._turn = itertools.count()
        self._methods = {f"/{SERVICE}/{name}": method for name, method in self._handlers().items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._methods.get(handler_call_details.method)

    async def _generate(self, request: bytes, context: Context) -> None:
        try:
            forwarded, pinned, urgency = _read_metadata(cast(Any, context.invocation_metadata()))
            worker = await self._dispatcher.generate(
                request,
                context.write,
                timeout=context.time_remaining(),
                metadata=forwarded,
                pinned=pinned,
                urgency=urgency,
            )
        except Exception as error:
            await abort_with(context, error)
        trailing: tuple[tuple[str, str], ...] = ((WORKER_ID_KEY, str(worker.worker_id)),)
        if worker.dp_rank:
            trailing += ((DP_RANK_KEY, str(worker.dp_rank)),)
        context.set_trailing_metadata(trailing)

    async def _health_check(self, request: Any, context: Context) -> Any:
        ready = bool(self._fleet.ready_clients())
        return pb.HealthCheckResponse(status="OK" if ready else "no workers ready")

    async def _abort(self, request: Any, context: Context) -> Any:
        success, message = await self._dispatcher.abort(request.request_id)
        return pb.AbortResponse(success=success, message=message)

    async def _get_model_info(self, request: Any, context: Context) -> Any:
        await self._next_client(context)
        await context.send_initial_metadata(self._about)
        info = self._fleet.facts.model_info()
        if self._model_id is not None:
            info.model_id = self._model_id
        return info

    async def _get_server_info(self, request: Any, context: Context) -> Any:
        await self._next_client(context)
        return self._fleet.facts.server_info()

    async def _embed(self, request: bytes, context: Context) -> bytes:
        client = await self._next_client(context)
        try:
            return await client.embed(request, timeout=context.time_remaining())
        except grpc.RpcError as error:
            await abort_with(context, error)

    async def _get_tokenizer(self, request: bytes, context: Context) -> None:
        client = await self._next_client(context)
        try:
            async for message in client.get_tokenizer(request, timeout=context.time_remaining()):
                await context.write(message)
        except grpc.RpcError as error:
            await abort_with(context, error)

    async def _subscribe_kv_events(self, request: bytes, context: Context) -> None:
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            "a router has no KV cache of its own; subscribe to its workers",
        )

    async def _next_client(self, context: Context) -> TrtllmClient:
        """Some ready engine, each in its turn."""
        ready = self._fleet.ready_clients()
        if not ready:
            await abort_with(context, NoWorkersError("no workers ready"))
        return ready[next(self._turn) % len(ready)]

    def _handlers(self) -> dict[str, Any]:
        return {
            "Generate": grpc.unary_stream_rpc_method_handler(self._generate),
            "HealthCheck": _unary(self._health_check, pb.HealthCheckRequest),
            "Abort": _unary(self._abort, pb.AbortRequest),
            "GetModelInfo": _unary(self._get_model_info, pb.GetModelInfoRequest),
            "GetServerInfo": _unary(self._get_server_info, pb.GetServerInfoRequest),
            "Embed": grpc.unary_unary_rpc_method_handler(self._embed),
            "GetTokenizer": grpc.unary_stream_rpc_method_handler(self._get_tokenizer),
            "SubscribeKvEvents": grpc.unary_stream_rpc_method_handler(self._subscribe_kv_events),
        }


async def abort_with(context: Context, error: Exception) -> NoReturn:
    """End a call with an error's status; log the error if it is ours."""
    code, details = status_of(error)
    trailing: Sequence[tuple[str, str | bytes]] = ()
    if isinstance(error, aio.AioRpcError):
        trailing = tuple(cast(Any, error.trailing_metadata()) or ())
    elif code is grpc.StatusCode.INTERNAL:
        log.error("request failed", exc_info=error)
    await context.abort(code, details, trailing)
    raise AssertionError("context.abort returned")


def _read_metadata(
    metadata: Iterable[tuple[str, str | bytes]] | None,
) -> tuple[Sequence[tuple[str, str | bytes]], WorkerWithDpRank | None, Urgency]:
    """What of a request's metadata goes on to the worker, which worker it asks for, and when."""
    forwarded: list[tuple[str, str | bytes]] = []
    urgency = NORMAL
    worker_id: Any = None
    rank: Any = "0"
    for key, value in metadata or ():
        if key in _FORWARDED:
            forwarded.append((key, value))
        elif key == PINNED_WORKER_KEY:
            worker_id = value
        elif key == DP_RANK_KEY:
            rank = value
        elif key in (PRIORITY_KEY, PRIORITY_JUMP_KEY):
            urgency = _read_urgency(urgency, key, value)
    if worker_id is None:
        return forwarded, None, urgency
    try:
        return forwarded, as_worker((int(worker_id), int(rank))), urgency
    except ValueError:
        raise InvalidRequestError(f"{PINNED_WORKER_KEY} names no worker: {worker_id!r}") from None


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


def _unary(method: Callable[[Any, Context], Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, _serialize)


def _serialize(message: Any) -> bytes:
    body: bytes = message.SerializeToString()
    return body
