"""A call of a client: what it asks, and the messages of its answer as they come.

No task and no generator: a reader waits for a future that the connection's bytes complete,
or has messages given to a function as they come.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from ._client_call import ClientCall, give_events
from ._streams import Stream
from .outcome import Outcome

__all__ = ["CallError", "Carrier", "ClientCall", "Sender", "Take", "Write", "give_events"]

Take: TypeAlias = Callable[[bytes], bytes | None]
"""Takes a message at once. What it returns is to be written before the next one is taken."""
Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class Carrier(Protocol):
    """A connection, as its calls see it."""

    def take(self, stream: Stream, size: int) -> None: ...
    def drop(self, stream: Stream) -> None: ...


class Sender(Protocol):
    """Who finds connections for calls."""

    max_message_bytes: int
    error: Callable[[Outcome], Exception]

    def submit(self, call: ClientCall) -> None: ...
    def forget(self, call: ClientCall) -> None: ...


class CallError(Exception):
    """A call failed."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.details)
        self.outcome = outcome
