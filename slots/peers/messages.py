"""Messages between routers on their bookings: msgpack arrays, each with its tag first.

A router is known by a random id, new with each of its processes. It numbers its batches from 0.
"""

from typing import Annotated, final

import msgspec

from ...base.errors import UNREADABLE, EventError

HASH_BYTES = 8
MAX_CHUNKS = 4096
MAX_EVENTS = 256
"""In a batch, and bookings in a chunk of a picture."""
MAX_ID = 512
"""Characters of a request's id; OwnBookings shortens longer ones."""
MAX_NAME = 256
"""Characters of a router's name."""
MAX_COUNT = 2**32 - 1
"""Largest of the numbers of a booking: tokens, and ranks."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Id = Annotated[str, msgspec.Meta(max_length=MAX_ID)]


@final
class Booked(msgspec.Struct, frozen=True, array_like=True, tag="booked"):
    """A request was given to a worker.

    `hashes` are its blocks' sequence hashes, 8 bytes each, little-endian. `prefill_tokens` are
    those left to compute, 0 where they do not count; `prefilled`: its first token is out.
    """

    request_id: _Id
    worker_id: _Number
    dp_rank: _Count
    hashes: bytes
    isl: Annotated[int, msgspec.Meta(gt=0, le=MAX_COUNT)]
    prefill_tokens: _Count
    expected_output_tokens: _Count = 0
    prefilled: bool = False

    def after_prefill(self) -> "Booked":
        """The same, its first token out."""
        return self if self.prefilled else msgspec.structs.replace(self, prefilled=True)


@final
class Prefilled(msgspec.Struct, frozen=True, array_like=True, tag="prefilled"):
    """Its first token is out; `cached_tokens` of its prompt were cached, -1: not reported."""

    request_id: _Id
    cached_tokens: Annotated[int, msgspec.Meta(ge=-1, le=MAX_COUNT)] = -1


@final
class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """It is over; 0 `output_tokens`: not counted."""

    request_id: _Id
    output_tokens: _Count = 0


Event = Booked | Prefilled | Ended


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """Events in their order; the router's `sequence`-th batch."""

    router_id: _Number
    sequence: _Number
    events: Annotated[list[Event], msgspec.Meta(max_length=MAX_EVENTS)]


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """A router is there; `following` is the number that its next batch will have."""

    router_id: _Number
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
    following: _Number
    leaving: bool = False


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A router wants the picture of another one; `wanted` 0: of all."""

    router_id: _Number
    wanted: int = 0


class Picture(msgspec.Struct, frozen=True, array_like=True, tag="picture"):
    """All that a router has booked after the batches before `following`, in `chunks` parts."""

    router_id: _Number
    following: _Number
    chunk: _Number
    chunks: Annotated[int, msgspec.Meta(gt=0, le=MAX_CHUNKS)]
    bookings: Annotated[list[Booked], msgspec.Meta(max_length=MAX_EVENTS)]


Message = Batch | Beat | Ask | Picture

encode_message = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def decode_message(data: bytes) -> Message:
    """EventError if it is none of these, or a number or a length in it is impossible."""
    try:
        message: Message = _decode(data)
    except UNREADABLE as error:
        raise EventError(f"no message of a router: {error}") from error
    if isinstance(message, Batch):
        for event in message.events:
            if type(event) is Booked:  # isinstance asks an abstract class, each time
                _check(event)
    elif isinstance(message, Picture):
        if not message.chunk < message.chunks:
            raise EventError(f"chunk {message.chunk} of {message.chunks}")
        for booking in message.bookings:
            _check(booking)
    return message


def _check(booking: Booked) -> None:
    if len(booking.hashes) % HASH_BYTES:
        raise EventError("no message of a router: part of a hash")
    if booking.prefill_tokens > booking.isl:
        raise EventError("no message of a router: no length of a prompt")
