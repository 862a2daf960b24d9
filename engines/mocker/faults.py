"""What can be made to go wrong with a mock engine: Fault, and what it makes of event messages.

A fault is a state: it holds until another one replaces it, and the healthy one lifts it.
"""

from random import Random
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from ...runtime.event_planes import EventPlane, PlaneOver

Message = TypeVar("Message")
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Failure = Literal[
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
]
"""A gRPC status by its name."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wrong with one engine. The default is a healthy one."""

    slow: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    """steps take so many times as long; the one that runs ends as it was begun"""
    hang: bool = False
    """no call is answered and no step is begun; connections stay open"""
    crash: bool = False
    """connections break and are refused; lifted, it starts with an empty cache on its old port"""
    fail: Failure | None = None
    """Generate ends at once with this status; OK: without a message"""
    drop: Share = 0.0
    """share of its event messages that get lost"""
    duplicate: Share = 0.0
    """share of its event messages that arrive twice"""
    reorder: Share = 0.0
    """share of its event messages that arrive after the next one"""
    cut: Share = 0.0
    """share of its event messages with which the stream of a gRPC subscriber breaks"""
    overrun: Share = 0.0
    """share of its cache changes that its own event buffer loses, for gRPC subscribers: their
    numbers are missing"""
    seed: int = 0
    """of which messages these are"""


HEALTHY = Fault()


class FaultyMessages(Generic[Message]):
    """What becomes of one message after the other, as a fault says. Pure."""

    def __init__(self) -> None:
        self._fault = HEALTHY
        self._random = Random(0)
        self._late: list[Message] = []  # at most one

    def begin(self, fault: Fault) -> list[Message]:
        """Begin anew with the seed of `fault`: what was kept back until now, to be let go."""
        self._fault = fault
        self._random = Random(fault.seed)
        return self.let_go()

    def let_go(self) -> list[Message]:
        """What is kept back, to be sent now."""
        late, self._late = self._late, []
        return late

    def take(self, message: Message) -> list[Message]:
        """The messages that are sent in place of this one, in order."""
        fault, chance = self._fault, self._random.random
        # Three draws for each message, so that one share does not move the others' choices.
        dropped, twice, late = (
            chance() < share for share in (fault.drop, fault.duplicate, fault.reorder)
        )
        if dropped:
            return []
        if late and not self._late:
            self._late = [message]
            return []
        return [message, *([message] if twice else []), *self.let_go()]


class FaultyPlane(PlaneOver):
    """An event plane that mishandles what one engine publishes, as its fault says."""

    def __init__(self, plane: EventPlane) -> None:
        super().__init__(plane)
        self._messages: FaultyMessages[tuple[str, bytes]] = FaultyMessages()

    async def set_fault(self, fault: Fault) -> None:
        """Begin anew with the seed of `fault`. A message that was kept back is let go."""
        await self._send(self._messages.begin(fault))

    async def publish(self, subject: str, payload: bytes) -> None:
        await self._send(self._messages.take((subject, payload)))

    async def close(self) -> None:
        """Let go of what was kept back. The plane below stays open."""
        await self._send(self._messages.let_go())

    async def _send(self, messages: list[tuple[str, bytes]]) -> None:
        for message in messages:
            await self.plane.publish(*message)
