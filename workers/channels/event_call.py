"""A subscription to an engine's events, as its reader has it, whatever carries them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from ...transport.http2 import ClientCall

LOOK_S = 0.01
"""How often it is looked whether the engine has accepted a subscription."""


class EventCall(Protocol):
    """What it reads fails with EngineCallError; once it was cancelled, with CancelledError."""

    async def initial_metadata(self) -> object:
        """Returns once the engine has accepted it."""
        ...

    def read(self) -> Awaitable[bytes]:
        """The next message; StopAsyncIteration if it ended well."""
        ...

    def deliver(
        self, take: Callable[[bytes], bytes | None], wait: Callable[[bytes], Awaitable[None]]
    ) -> Awaitable[None]:
        """Give all further messages to `take`, as they come; what it returns is given to `wait`
        before the next one. Returns if it ended well, fails as they do."""
        ...

    def cancel(self) -> object: ...


class Http2EventCall:
    """An EventCall on nghttp2: messages that came together are read without waiting."""

    def __init__(self, call: ClientCall) -> None:
        self._call = call

    async def initial_metadata(self) -> object:
        while not self._call.is_accepted and self._call.outcome is None:
            await asyncio.sleep(LOOK_S)
        return self._call.initial_metadata

    def read(self) -> Awaitable[bytes]:
        return anext(self._call)

    def deliver(
        self, take: Callable[[bytes], bytes | None], wait: Callable[[bytes], Awaitable[None]]
    ) -> Awaitable[None]:
        return self._call.deliver(take, wait)

    def cancel(self) -> bool:
        return self._call.cancel()
