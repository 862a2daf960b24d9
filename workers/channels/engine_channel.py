"""The channel to an engine: calls over nghttp2, failures in gRPC's words with where they arose.

Failures are EngineCallErrors; `timeout` is in seconds, and a call without an answer by then fails
with DEADLINE_EXCEEDED.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias

from ...base.errors import StatusCode
from ...transport.http2 import ClientChannel, Fault, Outcome, Tls
from ...transport.security import ClientTls
from ..failures import EngineCallError, Origin, origin_of
from .event_call import Http2EventCall
from .policy import ConnectionPolicy

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

_ORIGINS = {
    Fault.STATUS: Origin.ENGINE,
    Fault.CONNECT: Origin.CONNECT,
    Fault.BROKEN: Origin.TRANSPORT,
    Fault.ANSWER_SIZE: Origin.ANSWER_SIZE,
    Fault.REQUEST_SIZE: Origin.REQUEST_SIZE,
    Fault.STATUS_SIZE: Origin.STATUS_SIZE,
    # Who set the time knows whether it was a client's deadline.
    Fault.DEADLINE: Origin.ENGINE,
    Fault.OURS: Origin.ROUTER,
}


class EngineCall(Protocol):
    """A call under way: iterate it for the engine's messages.

    After `cancel` the iteration raises asyncio.CancelledError; EngineCallError where it failed.
    """

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    def cancel(self) -> bool: ...


def deliver(
    messages: AsyncIterator[bytes],
    take: Callable[[bytes], bytes | None],
    write: Callable[[bytes], Awaitable[None]],
) -> Coroutine[Any, Any, None]:
    """Give all messages of a call to `take`, and what it returns to `write` before the next one.

    Over nghttp2 no task is woken for a message that is taken. Fails as the iteration does.
    """
    own: Callable[..., Coroutine[Any, Any, None]] | None = getattr(messages, "deliver", None)
    return _iterated(messages, take, write) if own is None else own(take, write)


async def _iterated(
    messages: AsyncIterator[bytes],
    take: Callable[[bytes], bytes | None],
    write: Callable[[bytes], Awaitable[None]],
) -> None:
    async for message in messages:
        rest = take(message)
        if rest is not None:
            await write(rest)


class EngineChannel:
    """Calls methods of one engine; `method` is a path, /SERVICE/METHOD.

    It connects anew when the files of its `tls` change.
    """

    def __init__(
        self,
        address: str,
        policy: ConnectionPolicy,
        tls: ClientTls | None = None,
        tls_name: str | None = None,
    ) -> None:
        self._tls = tls
        trust = None
        if tls is not None:
            trust = Tls(lambda: tls.ssl_context, tls.name_of(tls_name))
            tls.files.listeners.append(self._renew)
        self._channel = ClientChannel(address, policy.channel_limits(), trust, self._error_of)
        self.stream = self._channel.call
        """begins a call, which the caller ends: to its last message, or by `call.cancel()`"""

    def _renew(self, _: object) -> None:
        self._channel.renew()

    def events(self, method: str, request: bytes) -> Http2EventCall:
        """Begin a call whose reader goes on for as long as there is an engine."""
        return Http2EventCall(self.stream(method, request, wide=True))

    async def unary(
        self,
        method: str,
        request: bytes,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
    ) -> tuple[Metadata, bytes]:
        """The initial metadata and the one message of an answer. The call ends with the task."""
        call = self.stream(method, request, timeout=timeout, metadata=metadata, wide=True)
        try:
            answer = None
            async for message in call:
                if answer is not None:
                    raise _internal("the answer has too many messages")
                answer = message
            if answer is None:
                raise _internal("the answer has no message")
            return call.initial_metadata, answer
        finally:
            call.cancel()

    def _error_of(self, outcome: Outcome) -> EngineCallError:
        assert outcome.fault is not None
        code, details = outcome.code, outcome.details
        if outcome.fault is Fault.STATUS and code is StatusCode.UNAVAILABLE:
            # An engine's gRPC that goes away may say so by a status, as if its application did.
            def origin() -> Origin:
                return origin_of(code, details, connected=self._channel.is_connected)

            return EngineCallError(origin, code, details, outcome.trailers)
        return EngineCallError(_ORIGINS[outcome.fault], code, details, outcome.trailers)

    async def close(self) -> None:
        """Close; what still runs is cancelled. Idempotent."""
        if self._tls is not None and self._renew in self._tls.files.listeners:
            self._tls.files.listeners.remove(self._renew)
        await self._channel.close()


def _internal(text: str) -> EngineCallError:
    return EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, text)
