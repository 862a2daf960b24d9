"""Where a message of a stream in JetStream stands: what the subject says that acknowledges it.

Two forms, by the number of tokens. 9: `$JS.ACK`, stream, consumer, times delivered, sequence in the
stream, sequence of the consumer, time, messages still pending. 11 or 12: `$JS.ACK`, domain, hash of
the account, and the same from the stream on; the twelfth is random, and more may follow.
Source: NATS' ADR-15, "JetStream Subscribe Workflow".
"""

from typing import NamedTuple

ACK_PREFIX = "$JS.ACK."
_SHORT, _LONG = 9, 11
_TIMES_DELIVERED = 4  # the place of that token in the short form
_PLACES_MORE = 2  # in the long one


class Delivery(NamedTuple):
    """One delivery of a message by a consumer."""

    stream_sequence: int
    consumer_sequence: int
    """of this delivery, from 1 on"""
    pending: int
    """messages behind it that were not delivered yet"""


def read_delivery(reply: str) -> Delivery | None:
    """What the reply subject of a message says; None if it is not such a subject."""
    if not reply.startswith(ACK_PREFIX):
        return None
    tokens = reply.split(".")
    if len(tokens) == _SHORT:
        at = _TIMES_DELIVERED + 1
    elif len(tokens) >= _LONG:
        at = _TIMES_DELIVERED + _PLACES_MORE + 1
    else:
        return None
    stream, consumer, _, pending = tokens[at : at + 4]
    if not (stream.isdecimal() and consumer.isdecimal() and pending.isdecimal()):
        return None
    return Delivery(int(stream), int(consumer), int(pending))
