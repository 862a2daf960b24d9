"""What a client of an engine needs of the channel to it, whichever library carries the bytes.

Failures are EngineCallErrors; `timeout` is in seconds, and a call without an answer by then fails
with DEADLINE_EXCEEDED.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]


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


class EngineChannel(Protocol):
    """Calls methods of one engine; `method` is a path, /SERVICE/METHOD."""

    def stream(
        self,
        method: str,
        request: bytes,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
    ) -> EngineCall:
        """Begin a call. The caller ends it: to its last message, or by `call.cancel()`."""
        ...

    async def unary(
        self,
        method: str,
        request: bytes,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
    ) -> tuple[Metadata, bytes]:
        """The initial metadata and the one message of an answer. The call ends with the task."""
        ...

    async def close(self) -> None:
        """Close; what still runs is cancelled. Idempotent."""
        ...
