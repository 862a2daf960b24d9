"""CallLimits: every gRPC call is counted while it lasts, from before its message is read.

gRPC itself bounds calls by dropping them without a count, so its own limits are set beyond ours.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, cast

import grpc
from grpc import aio

from ...runtime.limit_hits import LimitHits
from ...workers.trtllm_proto import SERVICE
from ..access import GuardedServer, current_caller, set_account
from ..admission import SharedBound
from ..dispatch import MAX_DECODED_BYTES
from ..peer_limits import PeerLimits

REQUESTS = frozenset(f"/{SERVICE}/{name}" for name in ("Generate", "Embed", "GetTokenizer"))
HEALTH = frozenset((f"/{SERVICE}/HealthCheck", "/grpc.health.v1.Health/Check"))

Context = aio.ServicerContext[Any, Any]


class CallLimits:
    """Bounds calls and bytes, of all callers and of each. Requests, questions about health and all
    other questions have room of their own: none of them keeps the others out.

    `on_request_refused` hears of each request that found none.
    """

    def __init__(
        self,
        limits: PeerLimits,
        hits: LimitHits,
        on_request_refused: Callable[[], None] = lambda: None,
    ) -> None:
        share = limits.max_share_per_caller
        self.limits = limits
        self.hits = hits
        self.message_timeout_s = limits.message_timeout_s
        self.max_metadata_bytes = limits.max_metadata_bytes
        self.requests = SharedBound("max_requests", limits.max_requests, share, hits)
        self.questions = SharedBound("max_questions", limits.max_questions, share, hits)
        self.health = SharedBound("max_questions", limits.max_questions, share, hits)
        self.bytes = SharedBound("max_request_bytes", limits.max_request_bytes, share, hits)
        self.on_request_refused = on_request_refused

    def open_calls(self) -> dict[str, int]:
        """How many there are, by what they ask for."""
        return {
            "requests": self.requests.used,
            "questions": self.questions.used,
            "health": self.health.used,
        }

    def bound_of(self, method: str) -> SharedBound:
        """What a method's calls are counted by."""
        if method in REQUESTS:
            return self.requests
        return self.health if method in HEALTH else self.questions


class LimitedServer:
    """Stands for a server where services are added to it: their calls are counted."""

    def __init__(self, server: GuardedServer, calls: CallLimits) -> None:
        self._server, self._calls = server, calls

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        limited = tuple(LimitedHandlers(inner, self._calls) for inner in handlers)
        self._server.add_generic_rpc_handlers(limited)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Nothing: generated code calls this too, for a server without asyncio."""


class LimitedHandlers(grpc.GenericRpcHandler):
    """The methods of one service within the limits.

    gRPC would read the message of a call with one message before it asks anybody, so those calls
    are served as ones with a stream of messages, of which the first is read here.
    """

    def __init__(self, inner: Any, calls: CallLimits) -> None:
        self._inner, self._calls = inner, calls
        self._known: dict[str, Any] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = str(handler_call_details.method)
        known = self._known.get(method)
        if known is None:
            handler = self._inner.service(handler_call_details)
            if handler is None:
                return None
            known = self._known[method] = _limited(handler, self._calls, method)
        return known


def _limited(handler: Any, calls: CallLimits, method: str) -> Any:
    """The handler of a method, its calls counted and its message read within the limits."""
    bound, decode = calls.bound_of(method), handler.request_deserializer
    if handler.request_streaming:
        return _limited_stream(handler, calls, bound)
    inner = handler.unary_stream or handler.unary_unary
    generates = inspect.isasyncgenfunction(inner)

    async def serve(_: Any, context: Context) -> Any:
        caller = await _enter(calls, bound, context)
        size = 0
        try:
            message = await _read(calls, context)
            refusal = calls.bytes.take(caller, len(message))
            if refusal is not None:
                await _refuse(calls, bound, context, refusal)
            size = len(message)
            request = message
            if decode is not None:
                request = await _decode(calls, decode, message, context)
            if not generates:
                return await inner(request, context)
            async for answer in inner(request, context):
                await context.write(answer)
        finally:
            bound.give_back(caller)
            if size:
                calls.bytes.give_back(caller, size)

    encode = handler.response_serializer
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(serve, None, encode)
    return grpc.stream_unary_rpc_method_handler(serve, None, encode)


def _limited_stream(handler: Any, calls: CallLimits, bound: SharedBound) -> Any:
    """The same for a method that takes a stream: reflection. Its messages are small ones."""
    inner, decode = handler.stream_stream, handler.request_deserializer

    def decode_small(message: bytes) -> Any:
        if len(message) > MAX_DECODED_BYTES:
            raise ValueError("the message is too long")
        return decode(message)

    async def serve(requests: Any, context: Context) -> Any:
        caller = await _enter(calls, bound, context)
        try:
            async for answer in inner(requests, context):
                yield answer
        finally:
            bound.give_back(caller)

    return grpc.stream_stream_rpc_method_handler(
        cast(Any, serve), decode_small, handler.response_serializer
    )


async def _enter(calls: CallLimits, bound: SharedBound, context: Context) -> str:
    """Count a call in; whose share it has."""
    metadata = cast(Any, context).invocation_metadata() or ()
    if sum(len(key) + len(value) for key, value in metadata) > calls.max_metadata_bytes:
        calls.hits.hit("max_metadata_bytes")
        await _refuse(calls, bound, context, "its metadata is too long")
    caller = current_caller().name or peer_host(str(cast(Any, context).peer()))
    refusal = bound.take(caller)
    if refusal is not None:
        await _refuse(calls, bound, context, refusal)
    set_account(caller)
    return caller


async def _refuse(calls: CallLimits, bound: SharedBound, context: Context, why: str) -> NoReturn:
    if bound is calls.requests:
        calls.on_request_refused()
    await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"no room for the call: {why}")


async def _read(calls: CallLimits, context: Context) -> bytes:
    """The call's message as it came."""
    try:
        async with asyncio.timeout(calls.message_timeout_s):
            message = await cast(Any, context).read()
    except TimeoutError:
        calls.hits.hit("message_timeout_s")
        await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "the call's message did not come")
    if message is aio.EOF:
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
    body: bytes = message
    return body


async def _decode(calls: CallLimits, decode: Any, message: bytes, context: Context) -> Any:
    if len(message) > MAX_DECODED_BYTES:
        calls.hits.hit("decoded_bytes")
        text = f"a message of {len(message)} bytes is too long for this method"
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
    try:
        return decode(message)
    except Exception:
        text = "the message is not of the method's type"
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)


async def _abort(context: Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("context.abort returned")


def peer_host(peer: str) -> str:
    """The address in what gRPC calls a peer, without its port: ipv4:ADDRESS:PORT and the like."""
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer
