"""Types of the kernel that writes server-sent events; its users import sse_writer.py."""

from collections.abc import Mapping
from typing import final

from ..transport.http1 import Client, Send
from .sse_writer import PlainEvents, SseShape

UNNAMED_SHAPE: tuple[bytes, bytes]

@final
class SseWriter:
    """One answer in server-sent events, until `close`. Its headers go with the first event, so that
    what fails before is answered by its own status. After `keep_alive_s` of silence a comment or a
    ping goes out, so that proxies keep the stream."""

    @property
    def waiting(self) -> list[bytes]:
        """events that go out together, in this list as long as there is a stream"""
    ending: bool
    """the last event was put: the end of the stream is to go with it"""
    started: bool
    """whether anything was put: it goes out even if nothing follows"""
    def __init__(
        self,
        send: Send,
        client: Client,
        headers: Mapping[str, str],
        keep_alive_s: float,
        shape: SseShape = ...,
    ) -> None: ...
    def put(self, data: bytes, *, last: bool = False) -> None:
        """Write an event. Events of one turn of the event loop go out together; after the `last`
        one, one more turn passes, so that the end of the stream goes with it."""

    async def write(self, data: bytes) -> None:
        """The same once the client keeps up."""

    def schedule(self) -> None:
        """Have what waits go out after this turn of the event loop. Call it with the first event
        that is put into `waiting`."""

    def around(self, events: PlainEvents) -> PlainEvents:
        """The same with what stands around what is put, as it is written."""

    async def end(self, data: bytes) -> None:
        """Write the last event, and end the answer."""

    async def close(self) -> None:
        """Send no more comments. Idempotent."""
