"""A channel to an engine on grpc.aio."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from ...base.errors import StatusCode
from ...transport.security import ClientTls
from ..failures import EngineCallError, Origin, origin_of
from .engine_channel import Metadata
from .policy import ConnectionPolicy

RENEWAL_GRACE_S = 3600.0
"""How long calls may go on over a channel whose credentials were renewed."""


class AioCall:
    """A call under way, of an EngineChannel and of its events."""

    def __init__(self, call: Any, error_of: Callable[[aio.AioRpcError], EngineCallError]) -> None:
        self._call, self._error_of = call, error_of
        self._messages: Any = aiter(call)

    def __aiter__(self) -> "AioCall":
        return self

    async def __anext__(self) -> bytes:
        try:
            message: bytes = await anext(self._messages)
        except aio.AioRpcError as error:
            raise self._error_of(error) from None
        return message

    async def aclose(self) -> None:
        """Stop reading."""
        await self._messages.aclose()

    async def initial_metadata(self) -> object:
        return await self._call.initial_metadata()

    def read(self) -> Awaitable[bytes]:
        return anext(self)

    def cancel(self) -> bool:
        return bool(self._call.cancel())


class AioChannel:
    """See EngineChannel. It is made anew when the files of its `tls` change."""

    def __init__(
        self,
        address: str,
        policy: ConnectionPolicy,
        tls: ClientTls | None = None,
        tls_name: str | None = None,
    ) -> None:
        self.address = address
        self._tls_name = tls_name
        self._options = policy.channel_options()
        self._tls = tls
        self._old: set[asyncio.Task[None]] = set()
        if tls is not None:
            tls.files.listeners.append(self._renew)
        self._open()

    def _renew(self, _: object) -> None:
        """Open a new channel, with the credentials of now; calls on the old one go on there."""
        task = asyncio.create_task(self._channel.close(RENEWAL_GRACE_S), name="old channel")
        self._old.add(task)
        task.add_done_callback(self._old.discard)
        self._open()

    def _open(self) -> None:
        if self._tls is None:
            self._channel = aio.insecure_channel(self.address, options=self._options)
        else:
            options = (*self._options, *self._tls.channel_options(self._tls_name))
            self._channel = aio.secure_channel(self.address, self._tls.credentials, options=options)
        self._streams: dict[str, Any] = {}  # by method

    def stream(
        self,
        method: str,
        request: bytes,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
    ) -> AioCall:
        """Cancelling only the task that iterates is not enough to end a call: in the first
        milliseconds of one grpc.aio may forget it.
        """
        start = self._streams.get(method)
        if start is None:  # no (de)serializers: bytes go through as they are
            start = self._streams[method] = self._channel.unary_stream(method, None, None)
        return AioCall(start(request, timeout=timeout, metadata=metadata), self._error_of)

    def events(self, method: str, request: bytes) -> AioCall:
        """Begin a call whose reader goes on for as long as there is an engine."""
        return self.stream(method, request)

    async def unary(
        self,
        method: str,
        request: bytes,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
    ) -> tuple[Metadata, bytes]:
        """The call ends with the task: grpc.aio goes on with one whose metadata alone was waited
        for."""
        start: Any = self._channel.unary_unary(method, None, None)
        call = start(request, timeout=timeout, metadata=metadata)
        try:
            return tuple(await call.initial_metadata() or ()), await call
        except aio.AioRpcError as error:
            raise self._error_of(error) from None
        finally:
            call.cancel()  # nothing, if it has ended

    def _error_of(self, error: aio.AioRpcError) -> EngineCallError:
        code, details = StatusCode(error.code().value[0]), error.details() or ""

        def origin() -> Origin:
            connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
            return origin_of(code, details, connected=connected)

        trailing: Any = error.trailing_metadata() or ()
        return EngineCallError(origin, code, details, tuple(trailing))

    async def close(self) -> None:
        if self._tls is not None and self._renew in self._tls.files.listeners:
            self._tls.files.listeners.remove(self._renew)
        for task in self._old:
            task.cancel()
        if self._old:
            await asyncio.wait(self._old)
        await self._channel.close(None)
