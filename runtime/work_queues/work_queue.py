"""WorkQueue: one queue in JetStream, as calls. Every failure of NATS is a StoreError."""

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError

from ..kv_stores import STREAM_IN_USE, NatsConnection, StoreError, refusal
from .settings import GroupSettings, QueueSettings

_MESSAGE_ID, _LASTS = "Nats-Msg-Id", "Nats-TTL"
_FULL = (10077, 10023, 10028, 10047)
"""the bound on messages; what the server's memory or disk has"""
T = TypeVar("T")


class QueueFullError(StoreError):
    """The queue has all that it takes, or its server has no more memory or disk for it."""


class QueueRefusedError(StoreError):
    """What has the queue's name, or its group's, is another's. It does not pass by waiting."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False)


class WorkQueue:
    """Calls about the queue of `settings`. The connection is its owner's to close.

    What JetStream answers is read within the call: what cannot be read is a StoreError, too.
    """

    def __init__(self, connection: NatsConnection, settings: QueueSettings) -> None:
        self.connection, self.settings = connection, settings
        self._what = f"the queue {settings.stream}"
        self._may_expire = True
        """whether messages of the stream may have deadlines: an operator's may know none"""

    async def ensure(self) -> None:
        """Make it if it is not there. QueueRefusedError if a stream has its name that is none."""
        settings = self.settings

        async def look(js: JetStreamContext) -> str:
            info = await js.stream_info(settings.stream)
            self._may_expire = bool(info.config.allow_msg_ttl)
            return settings.why_other(info.config) or ""

        why = await self._find(look)
        if why is None:
            try:
                await self.connection.call(lambda js: js.add_stream(settings.config()))
                self._may_expire = True
                return
            except APIError as error:
                if error.err_code != STREAM_IN_USE:
                    raise self._refused(error) from None
            why = await self._find(look)  # another process was faster
        if why:
            raise QueueRefusedError(f"NATS: the stream {settings.stream} {why}: it is no queue")

    async def ensure_group(self, group: GroupSettings) -> None:
        """Make a group if it is not there. QueueRefusedError if a consumer has its name that is
        none, or another one reads its messages."""
        stream = self.settings.stream

        async def look(js: JetStreamContext) -> str:
            info = await js.consumer_info(stream, group.name)
            return group.why_other(info.config) or ""

        why = await self._find(look)
        if why is None:
            try:
                await self.connection.call(lambda js: js.add_consumer(stream, group.config()))
            except APIError as error:
                if error.err_code == 10099 or error.err_code == 10100:
                    text = f"another consumer of the stream {stream} reads {group.subject}"
                    raise QueueRefusedError(f"NATS: {text}: this queue is not ours alone") from None
                raise self._refused(error) from None
            return
        if why:
            raise QueueRefusedError(f"NATS: the consumer {group.name} of {stream} {why}")

    async def publish(
        self,
        subject: str,
        body: bytes,
        message_id: str,
        headers: dict[str, str] | None = None,
        *,
        lasts_s: float | None = None,
    ) -> int:
        """Add a message, and return its number; one of the same id within `duplicates_s` adds
        nothing. After `lasts_s` it leaves the queue, also from its reader, where the stream knows
        deadlines. QueueFullError, or another StoreError: not transient if NATS takes no message of
        that length."""
        given = {**(headers or {}), _MESSAGE_ID: message_id}
        if lasts_s is not None and self._may_expire:
            given[_LASTS] = str(max(1, math.ceil(lasts_s)))
        stream = self.settings.stream

        async def put(js: JetStreamContext) -> int:
            try:
                found = await js.publish(subject, body, stream=stream, headers=given)
            except APIError as error:
                if error.err_code in _FULL:  # with the status of a server that is not there
                    raise QueueFullError(f"NATS: the queue {stream} is full") from None
                raise
            return found.seq

        try:
            return await self.connection.call(put)
        except APIError as error:
            raise self._refused(error) from None

    async def delete(self, sequence: int) -> None:
        """Take a message out, also from its reader. Nothing if it is gone."""
        await self._find(lambda js: js.delete_msg(self.settings.stream, sequence))

    async def message(self, sequence: int) -> bytes | None:
        """The body of one that is in the queue; None if it is gone."""

        async def get(js: JetStreamContext) -> bytes:
            found = await js.get_msg(self.settings.stream, sequence)
            return bytes(found.data or b"")

        return await self._find(get)

    async def messages(self) -> int:
        """To be done and being done. StoreError if there is no such queue."""

        async def count(js: JetStreamContext) -> int:
            info = await js.stream_info(self.settings.stream)
            return int(info.state.messages)

        found = await self._find(count)
        if found is None:
            raise StoreError(f"NATS has no stream {self.settings.stream}")
        return found

    async def send(self, subject: str, body: bytes) -> bool:
        """Publish outside of the queue, without waiting; False if that is known not to leave."""
        try:
            link = await self.connection.link()
            return await link.publish(subject, body)
        except (StoreError, NatsError, OSError):
            return False

    async def _find(self, ask: Callable[[JetStreamContext], Awaitable[T]]) -> T | None:
        return await self.connection.find(ask, self._what)

    def _refused(self, error: APIError) -> StoreError:
        return refusal(self._what, error)
