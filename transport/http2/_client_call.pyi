"""Types of the kernel of a client's call; its users import client_call.py."""

import asyncio
from collections.abc import Callable
from typing import Any, final

from ._streams import Stream
from .client_call import Carrier, Sender, Take, Write
from .outcome import Outcome
from .wire import Header

MOST_REFUSALS: int
"""So often a call that the peer did not look at is sent again."""
REFUSAL_PAUSE_S: float
"""Before the second time; the first is at once, and each later pause twice as long."""
CANCELLED_HERE: Outcome

@final
class ClientCall:
    """Iterate it for the messages: the channel's error where it failed, CancelledError once it was
    cancelled.

    It begins at once, with or without a reader; unread bytes make the peer wait.
    """

    @property
    def headers(self) -> tuple[Header, ...]: ...
    @property
    def more(self) -> tuple[Header, ...]: ...
    @property
    def message(self) -> bytes: ...
    @property
    def wide(self) -> bool: ...
    @property
    def outcome(self) -> Outcome | None:
        """how it ended; None: it has not"""

    def __init__(
        self,
        channel: Sender,
        headers: tuple[Header, ...],
        more: tuple[Header, ...],
        message: bytes,
        timeout: float | None,
        wide: bool = False,
    ) -> None: ...
    def __aiter__(self) -> ClientCall: ...
    def __anext__(self) -> asyncio.Future[bytes]: ...
    async def deliver(self, take: Take, write: Write) -> None:
        """Give every message to `take`, out of the connection's own callback where no reader waits.

        Fails as an iteration does, or as they do.
        """

    async def aclose(self) -> None:
        """Stop reading; what is under way is cancelled."""

    def cancel(self) -> bool:
        """End it: the reader gets CancelledError, and not what came before. False: it had ended."""

    @property
    def is_accepted(self) -> bool:
        """Whether the peer has begun to answer: its headers are there."""

    @property
    def initial_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """What the peer sent before its messages."""

    def on_begun(self, connection: Carrier, stream: Stream) -> None:
        """It has a stream of this connection now."""

    def on_message(self, message: bytes) -> bool:
        """Whether it was read."""

    def on_end(self, reset: int) -> None:
        """Its stream ended."""

    def on_refused(self) -> None:
        """The peer did not look at it, and may look at it another time, or on a new connection."""

    def on_lost(self, why: str) -> None:
        """Its connection is gone."""

    def on_discarded(self) -> None:
        """Its channel was closed."""

    def end(self, outcome: Outcome) -> None:
        """It has ended like this. Idempotent: the first one counts."""

def give_events(
    on_connection: Callable[[int, Any], None],
    events: list[tuple[Any, int, Any]],
    take: Callable[[Stream, int], None],
    fail: Callable[[Stream, ClientCall, BaseException], None],
) -> bool:
    """Hand the events of a connection's calls to them; whether there were any.

    `on_connection` takes the kind and value of those of no call, `take` is the session's; `fail`
    is called with a stream, its call and the fault of ours that ended it.
    """
