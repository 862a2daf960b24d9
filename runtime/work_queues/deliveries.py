"""Delivery: one message in the hands of one reader, to be settled by it."""

import json
from collections.abc import Awaitable, Callable, Mapping

from nats.aio.msg import Msg

Send = Callable[[str, bytes], Awaitable[bool]]
"""Publish to a subject; False if that is known not to leave."""


class Delivery:
    """Settled once, by `ack`, `nak` or `term`; what is not settled in time is delivered again.

    Each returns False if the word could not be sent: then the message is delivered again.
    """

    __slots__ = ("subject", "body", "headers", "sequence", "number", "settled", "_reply", "_send")

    def __init__(self, message: Msg, send: Send) -> None:
        """nats.errors.Error if the message is of no consumer."""
        facts = message.metadata
        self.subject, self.body = message.subject, bytes(message.data)
        self.headers: Mapping[str, str] = message.headers or {}
        self.sequence: int = facts.sequence.stream
        """of the message in its stream"""
        self.number: int = facts.num_delivered
        """of this delivery, from 1 on"""
        self.settled = False
        self._reply, self._send = message.reply, send

    async def ack(self) -> bool:
        """It is done, and leaves the queue."""
        return await self._settle(b"+ACK")

    async def nak(self, delay_s: float = 0.0) -> bool:
        """It is not: another reader is to have it, or this one, after that delay."""
        delay = json.dumps({"delay": int(delay_s * 1e9)}) if delay_s > 0 else ""
        return await self._settle(f"-NAK {delay}".rstrip().encode())

    async def term(self) -> bool:
        """It cannot be done by any reader, and leaves the queue."""
        return await self._settle(b"+TERM")

    async def in_progress(self) -> bool:
        """It is being done: the wait begins anew."""
        return not self.settled and await self._send(self._reply, b"+WPI")

    async def _settle(self, word: bytes) -> bool:
        if self.settled:
            return False
        self.settled = True
        return await self._send(self._reply, word)
