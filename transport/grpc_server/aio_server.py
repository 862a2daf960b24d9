"""A server of gRPC on grpc.aio: the fallback where there is no nghttp2."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import grpc
from grpc import aio

from ...base.errors import StatusCode
from ...process.supervised import cancelled_for_sure
from ..http2 import ServerLimits
from ..security import ServerTls
from .methods import AtOnce, Metadata, PeerGoneError, Serve, ServerCall

Context = aio.ServicerContext[Any, Any]
PENDING_CALLS = 4
"""As many times our limit on calls may wait for our loop to see them before grpc.aio drops some.
They hold no message yet."""
_CODES = {StatusCode(code.value[0]): code for code in grpc.StatusCode}


class AioCall:
    """A ServerCall of grpc.aio's context."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def invocation_metadata(self) -> Metadata:
        return cast(Metadata, self._context.invocation_metadata() or ())

    def peer(self) -> str:
        return str(self._context.peer())

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return cast("Mapping[str, Sequence[bytes]]", self._context.auth_context())

    def time_remaining(self) -> float | None:
        left: float | None = self._context.time_remaining()
        return left

    def read_at_once(self) -> bytes | None:
        return None  # it does not tell

    async def read(self) -> bytes | None:
        message = await self._context.read()
        return None if message is aio.EOF else cast(bytes, message)

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        await self._context.send_initial_metadata(metadata)

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._context.set_trailing_metadata(metadata)

    def put(self, message: bytes) -> bool:
        return False  # a write is always waited for

    async def write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except aio.UsageError:
            raise  # a bug of ours
        except Exception as error:
            # gRPC tells of it by an internal error of its own, whose type it does not export.
            raise PeerGoneError("the client went away") from error

    async def finish(self) -> None:
        """Nothing: each message was waited for."""

    async def abort(
        self, code: StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        try:
            await self._context.abort(_CODES[code], details, trailing_metadata)
        except (aio.AbortError, aio.UsageError):
            raise  # how it ends the call, and a bug of ours
        except Exception as gone:
            raise asyncio.CancelledError from gone  # nobody is there to be told
        raise AssertionError("context.abort returned")


class _Handlers(grpc.GenericRpcHandler):
    """The methods as ones with streams of messages: of the others gRPC would read the request
    before it asks anybody."""

    def __init__(self, methods: Mapping[str, Serve]) -> None:
        self._methods: dict[str, Any] = {
            path: grpc.stream_stream_rpc_method_handler(cast(Any, _behaviour(serve)))
            for path, serve in methods.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._methods.get(str(handler_call_details.method))


def _behaviour(serve: Serve) -> Any:
    async def behave(_: Any, context: Context) -> None:
        call: ServerCall = AioCall(context)
        try:
            await serve(call)
        except PeerGoneError as error:
            raise asyncio.CancelledError from error

    return behave


class AioServer:
    """See GrpcListener. gRPC closes connections beyond the limit at once, without a count."""

    def __init__(self, limits: ServerLimits, tls: ServerTls | None) -> None:
        self._tls = tls
        self._server = aio.server(options=_options(limits))

    def bind(self, host: str, port: int, *, shared: bool = False) -> int:
        if shared:
            raise OSError("a port is not shared with gRPC's own server")
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(where)
            else:
                port = self._server.add_secure_port(where, self._tls.grpc_credentials())
        except RuntimeError as error:
            raise OSError(f"cannot listen on {where}") from error
        if not port:
            raise OSError(f"cannot listen on {where}")
        return port

    async def start(
        self, methods: Mapping[str, Serve], at_once: Mapping[str, AtOnce] | None = None
    ) -> None:
        self._server.add_generic_rpc_handlers((_Handlers(methods),))
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        with cancelled_for_sure():
            await self._server.stop(grace_s or None)

    async def kill(self) -> None:
        await self._server.stop(None)


def _options(limits: ServerLimits) -> tuple[tuple[str, Any], ...]:
    """The limits in gRPC's words."""
    timeout_ms = int(limits.keepalive_timeout_s * 1e3)
    options: dict[str, Any] = {
        "grpc.http2.bdp_probe": 0,  # a fixed window
        "grpc.http2.lookahead_bytes": limits.window_bytes,
        # A port that is in use is an error, not half of the requests.
        "grpc.so_reuseport": 0,
        "grpc.keepalive_time_ms": int(limits.keepalive_s * 1e3),
        "grpc.keepalive_timeout_ms": timeout_ms,
        # Its own default is a minute, and the longer of the two counts.
        "grpc.http2.ping_timeout_ms": timeout_ms,
        # Clients ping every 30 s, also through a long silence; that is no abuse.
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.min_ping_interval_without_data_ms": int(limits.ping_interval_s * 1e3),
        "grpc.max_send_message_length": limits.max_message_bytes,
        "grpc.max_receive_message_length": limits.max_message_bytes,
        "grpc.max_allowed_incoming_connections": limits.max_connections,
        "grpc.server_handshake_timeout_ms": int(limits.handshake_s * 1e3),
        "grpc.max_metadata_size": limits.max_header_bytes,
        "grpc.absolute_max_metadata_size": limits.max_header_bytes,
        # So many may wait for our loop to see them before gRPC drops some, which it does with
        # CANCELLED and without a count. They hold no message yet.
        "grpc.server.max_pending_requests": PENDING_CALLS * limits.max_calls,
        "grpc.server.max_pending_requests_hard_limit": 2 * PENDING_CALLS * limits.max_calls,
        # Where it is reached gRPC refuses streams as if we were gone.
        "grpc.max_concurrent_streams": 2 * PENDING_CALLS * limits.max_calls,
    }
    for name, seconds in (
        ("idle", limits.idle_s),
        ("age", limits.age_s),
        ("age_grace", limits.age_grace_s),
    ):
        if math.isfinite(seconds):
            options[f"grpc.max_connection_{name}_ms"] = int(seconds * 1e3)
    return tuple(options.items())
