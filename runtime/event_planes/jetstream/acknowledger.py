"""StreamAcknowledger: tells the server which of a stream's messages were applied."""

import asyncio
from collections.abc import Awaitable, Callable

from nats.errors import Error as NatsError

from ...kv_stores import NatsConnection, StoreError
from .stream_reader import StreamReader


class StreamAcknowledger:
    """Acknowledges, at once, all that a reader has read; stream_reader.py decides when."""

    def __init__(
        self,
        reader: StreamReader,
        connection: NatsConnection,
        settled: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """`settled` returns once all is applied that handlers were given."""
        self._reader, self._connection, self._settled = reader, connection, settled
        self._reply = ""  # where an acknowledgement of all that was read goes

    def on_message(self, reply: str) -> None:
        """The next message was read, and handlers were given it."""
        self._reply = reply

    def forget(self) -> None:
        """The present reading ended."""
        self._reply = ""

    async def acknowledge(self) -> None:
        """Acknowledge what was read, once it is applied; what fails is delivered again."""
        sequence, reply = self._reader.read, self._reply
        if sequence <= self._reader.acked or not self._reader.is_open or not reply:
            return
        if self._settled is not None:
            await self._settled()
        try:
            link = await self._connection.link()
            await link.publish(reply, b"+ACK")
        except (StoreError, NatsError, OSError):
            return
        self._reader.on_acked(sequence, asyncio.get_running_loop().time())
