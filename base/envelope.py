"""The wrapper around every message of the event plane: a msgpack map of five fields."""

import time
from collections.abc import Callable

import msgspec

from .errors import UNREADABLE, EventError


class EventEnvelope(msgspec.Struct, frozen=True):
    """One message of one publisher. The field order is the wire's."""

    publisher_id: int
    """random and below 2**53; together with `sequence` it names the message"""
    sequence: int
    """counts the publisher's messages on this topic, from 0"""
    published_at: int
    """wall clock of the publisher in ms: for people, never for logic"""
    topic: str
    payload: bytes
    """msgpack of the topic's own type"""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(EventEnvelope).decode


def encode_envelope(envelope: EventEnvelope) -> bytes:
    return _encode(envelope)


class EnvelopeWriter:
    """Numbers and dates the messages of one publisher on one topic. `wall_ns`: the time of day."""

    def __init__(
        self, publisher_id: int, topic: str, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._publisher_id, self._topic, self._wall_ns = publisher_id, topic, wall_ns
        self._sequence = 0

    def wrap(self, payload: bytes) -> bytes:
        """The next message."""
        sequence, self._sequence = self._sequence, self._sequence + 1
        published_at = self._wall_ns() // 1_000_000
        return encode_envelope(
            EventEnvelope(self._publisher_id, sequence, published_at, self._topic, payload)
        )


def decode_envelope(message: bytes) -> EventEnvelope:
    """EventError if `message` is not msgpack, or not an envelope. Unknown fields are ignored."""
    try:
        envelope = _decode(message)
    except UNREADABLE as error:
        raise EventError(f"not an event envelope: {error}") from error
    if min(envelope.publisher_id, envelope.sequence, envelope.published_at) < 0:
        raise EventError("not an event envelope: a number is negative")
    return envelope
