"""One connection between a front and the decider: messages in, batches of messages out."""

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import structlog

from .messages import LinkError, MessageReader, encode

AT_ONCE = 64
"""Messages handled before others have their turn on the event loop."""
NOTES_S = 0.002
MAX_UNSENT_BYTES = 256 << 20
"""With more that the other side has not read, the connection is given up. A front that comes back
tells of all its requests at once: thousands of long prompts must fit."""
_PEER = struct.Struct("3i")  # Linux: pid, uid, gid
T = TypeVar("T")

log = structlog.get_logger(__name__)


class MessageConnection(asyncio.Protocol, Generic[T]):
    """From `connection_made` to `connection_lost`. Messages told in one turn of the event loop are
    written together. What is told when there is no connection is lost.

    `on_message` may raise ValueError or LinkError for what makes no sense: that ends the
    connection, as a bad frame does. `on_lost` is told why, once.
    """

    def __init__(
        self,
        kind: Any,
        on_message: Callable[[T], None],
        on_lost: Callable[[str], None],
        on_made: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader: MessageReader[T] = MessageReader(kind)
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Any] = []
        self._flush_at: asyncio.Handle | None = None
        self._flush_late = False
        self._is_working = False
        self._came: deque[T] = deque()
        self._working: asyncio.Handle | None = None
        self._why = "it was closed"
        self.is_paused = False
        """the other side does not read: what can wait had better wait"""

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def tell(self, message: Any) -> None:
        """Send a message with the others of this turn."""
        if self._transport is None:
            return
        self._unsent.append(message)
        if self._is_working:
            return  # it goes with the other answers
        if self._flush_at is None or self._flush_late:
            if self._flush_at is not None:
                self._flush_at.cancel()
            self._flush_late = False
            self._flush_at = asyncio.get_running_loop().call_soon(self.flush)

    def note(self, message: Any) -> None:
        """Send a message with the next one that is told, or within NOTES_S: to be woken for each
        would cost the peer more than all of them."""
        if self._transport is None:
            return
        self._unsent.append(message)
        if self._flush_at is None:
            self._flush_late = True
            self._flush_at = asyncio.get_running_loop().call_later(NOTES_S, self.flush)

    def flush(self) -> None:
        """Send now what was told."""
        if self._flush_at is not None:
            self._flush_at.cancel()
            self._flush_at = None
        messages, self._unsent = self._unsent, []
        transport = self._transport
        if transport is None or not messages:
            return
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.close("it does not read what it is told")
            return
        try:
            transport.write(encode(messages))
        except LinkError as error:
            self.close(str(error))

    def close(self, why: str = "it was closed") -> None:
        """End the connection at once. Idempotent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._why = why
            transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not is_own_user(self._transport):
            self.close("its user is not ours")
            return
        self._on_made()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        try:
            self._came += self._reader.feed(data)
        except LinkError as error:
            self.close(str(error))
            return
        if self._working is None:
            self._work()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._working is not None:
            self._working.cancel()
            self._working = None
        if self._transport is not None:  # not by us
            self._why = str(exc) if exc is not None else "the other side closed it"
        self._transport = None
        self._came.clear()
        self._unsent.clear()
        self._on_lost(self._why)

    def _work(self) -> None:
        """Handle what came, some at a time; nothing more is read until that is done."""
        self._working = None
        self._is_working = True
        try:
            for _ in range(min(AT_ONCE, len(self._came))):
                if self._transport is None:
                    return
                self._on_message(self._came.popleft())
        except (ValueError, LinkError) as error:
            self.close(f"it makes no sense: {error}")
            return
        finally:
            self._is_working = False
        self.flush()
        if self._transport is None:
            return
        if self._came:
            self._transport.pause_reading()
            self._working = asyncio.get_running_loop().call_soon(self._work)
        else:
            self._transport.resume_reading()


def is_own_user(transport: asyncio.Transport) -> bool:
    """Whether the process at the other end of a Unix socket is of our user, as far as the system
    tells."""
    peer = transport.get_extra_info("socket")
    option = getattr(socket, "SO_PEERCRED", None)
    if peer is None or option is None:
        return True  # the socket's file is in a folder that only our user may enter
    _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, option, _PEER.size))
    return bool(uid == os.getuid())
