"""Requests over gRPC, from the worker's side: the answer goes back on the call that asks."""

import asyncio
from collections import deque
from typing import Any

import grpc
from structlog import get_logger

from ...process.supervised import cancelled_for_sure
from ...transport.security import ServerTls
from .grpc_carrier import MAX_MESSAGE_BYTES, METHOD, PATH_KEY, PING_MS, PING_TIMEOUT_MS
from .request_server import MAX_CALLERS, RequestServer

GRACE_S = 0.0
_OPTIONS = (
    ("grpc.max_concurrent_streams", MAX_CALLERS),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_MS // 2),
    ("grpc.so_reuseport", 0),
)

log = get_logger(__name__)


class GrpcListener:
    """Takes calls for a RequestServer from `start` to `close`."""

    def __init__(self, server: RequestServer, tls: ServerTls | None = None) -> None:
        """With `tls` callers are taken over TLS alone. Its files are its owner's to watch."""
        self._server, self._tls = server, tls
        self._listening: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. OSError if the port is taken."""
        service, method = METHOD.strip("/").split("/")
        handler: Any = grpc.unary_stream_rpc_method_handler(self._call)
        listening = grpc.aio.server(options=_OPTIONS)
        listening.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        shown = f"[{host}]" if ":" in host else host
        try:
            if self._tls is None:
                self.port = listening.add_insecure_port(f"{shown}:{port}")
            else:
                credentials = self._tls.grpc_credentials()
                self.port = listening.add_secure_port(f"{shown}:{port}", credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {shown}:{port}: {error}") from None
        await listening.start()
        self._listening = listening

    async def close(self) -> None:
        """Stop listening; what still runs is given up. Idempotent."""
        listening, self._listening = self._listening, None
        if listening is not None:
            with cancelled_for_sure():
                await listening.stop(GRACE_S)

    async def _call(self, payload: bytes, context: Any) -> None:
        metadata = {key: value for key, value in context.invocation_metadata() or ()}
        sink = _CallSink(context)
        answer = self._server.take_call(str(metadata.get(PATH_KEY, "")), payload, sink, sink.over)
        if isinstance(answer, str):
            await context.write(answer.encode())
            return
        try:
            await asyncio.wait({answer})
        finally:
            sink.over.set()  # if we are cancelled, the caller wants no more of it
            await asyncio.wait({answer})


class _CallSink:
    """Frames of one answer. gRPC makes us wait while the caller does not read."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._frames: deque[bytes] = deque((b"",))  # the acknowledgement
        self.over = asyncio.Event()

    def write(self, frame: bytes) -> None:
        self._frames.append(frame)

    async def drain(self) -> None:
        while self._frames and not self.over.is_set():
            try:
                await self._context.write(self._frames.popleft())
            except (grpc.aio.BaseError, grpc.RpcError, asyncio.InvalidStateError) as error:
                log.debug("a caller is gone", error=str(error)[:200])
                self.over.set()
