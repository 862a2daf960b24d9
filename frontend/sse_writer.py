"""SseWriter: where server-sent events are written."""

from typing import NamedTuple

import msgspec

from ._sse_writer import UNNAMED_SHAPE, SseWriter

__all__ = ["NAMED", "UNNAMED", "PlainEvents", "SseShape", "SseWriter", "named_event"]


class SseShape(NamedTuple):
    """How a stream is written."""

    event: bytes
    """the bytes around what is put"""
    keep_alive: bytes
    """what goes out in silence"""


UNNAMED = SseShape(*UNNAMED_SHAPE)
"""Events without names: some clients crash on named ones."""
NAMED = UNNAMED._replace(event=b"%b")
"""What is put are whole events, by `named_event`."""


def named_event(name: bytes, data: bytes) -> bytes:
    """An event of a stream that is NAMED."""
    return b"event: %b\ndata: %b\n\n" % (name, data)


class PlainEvents(msgspec.Struct, frozen=True):
    """The chunks of a choice of which only text comes, and in the end a finish reason: what they
    have around the JSON of both."""

    begun: set[int]
    """the choices of which something was written"""
    first: bytes
    """before the first text"""
    before: bytes
    """before each other text"""
    nothing: bytes
    """where the last chunk has none"""
    behind: bytes
    """behind it, before the finish reason"""
    end: bytes

    def within(self, before: bytes, behind: bytes) -> "PlainEvents":
        """The same with this around what is put, as it is written."""
        return PlainEvents(
            self.begun,
            before + self.first,
            before + self.before,
            before + self.nothing,
            self.behind,
            self.end + behind,
        )
