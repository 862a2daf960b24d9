"""What an answer's frames mean, from the handshake to the end. No socket."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from ...base.errors import UNREADABLE
from .faults import Fault
from .frames import FrameError, TwoPart
from .messages import PROLOGUE, SENTINEL_HEADER, read_handshake


class Data(NamedTuple):
    """A part of the answer, without its envelope."""

    value: Any


class Ended(NamedTuple):
    """Nothing more comes. `fault` is None if the answer is complete."""

    fault: Fault | None = None
    text: str = ""


Event: TypeAlias = Data | Ended


T = TypeVar("T")


class Envelope(msgspec.Struct, Generic[T]):
    """What a data frame says."""

    data: T | msgspec.UnsetType = msgspec.UNSET
    complete_final: bool = False


PartDecoder: TypeAlias = Callable[[bytes], Envelope[Any]]
_UNTYPED: dict[str, PartDecoder] = {
    "msgpack": msgspec.msgpack.Decoder(Envelope[Any]).decode,
    "json": msgspec.json.Decoder(Envelope[Any]).decode,
}


def part_decoders(type: Any) -> Mapping[str, PartDecoder]:
    """By codec, decoders of data frames, whose data are of a msgspec `type` if they fit it, and of
    no type at all if they do not."""
    typed: dict[str, PartDecoder] = {
        "msgpack": msgspec.msgpack.Decoder(Envelope[type]).decode,
        "json": msgspec.json.Decoder(Envelope[type]).decode,
    }
    return {codec: _either(decode, _UNTYPED[codec]) for codec, decode in typed.items()}


def _either(typed: PartDecoder, untyped: PartDecoder) -> PartDecoder:
    def decode(body: bytes) -> Envelope[Any]:
        try:
            return typed(body)
        except msgspec.ValidationError:
            return untyped(body)

    return decode


_PROLOGUE = msgspec.json.Decoder(dict[str, str | None])


class ResponseReader:
    """Feed it the frames of one call-home connection; after Ended it says nothing more."""

    def __init__(self, codec: str, decoders: Mapping[str, PartDecoder] | None = None) -> None:
        self._decode = (decoders or _UNTYPED)["msgpack" if codec == "msgpack" else "json"]
        self._prologue = False
        self.ended = False

    def on_frame(self, frame: TwoPart) -> list[Event]:
        """What a frame behind the handshake says."""
        if self.ended:
            return []
        try:
            if not self._prologue:
                return self._on_prologue(frame)
            header, body = frame
            if not header:
                return self._on_data(body) if body else []
            events = self._on_data(body) if body else []
            if not self.ended:
                events += self._on_control(header)
            return events
        except UNREADABLE as error:
            return self._end(Fault.PROTOCOL, f"a frame cannot be read: {error}")

    def on_eof(self) -> list[Event]:
        """The connection is over."""
        return self._end(Fault.BROKEN, "the answer ended before it was complete")

    def _on_prologue(self, frame: TwoPart) -> list[Event]:
        if frame.header == PROLOGUE:
            self._prologue = True
            return []
        header = _PROLOGUE.decode(frame.header)
        self._prologue = True
        error = header.get("error")
        return [] if error is None else self._end(Fault.REFUSED, error)

    def _on_data(self, body: bytes) -> list[Event]:
        envelope = self._decode(body)
        data = envelope.data
        events: list[Event] = [] if data is msgspec.UNSET else [Data(data)]
        if envelope.complete_final:
            self.ended = True
            events.append(Ended())
        return events

    def _on_control(self, header: bytes) -> list[Event]:
        if header == SENTINEL_HEADER or msgspec.json.decode(header) == "sentinel":
            return self._end(Fault.BROKEN, "the worker gave up its answer")
        return self._end(Fault.PROTOCOL, f"an unknown control message: {header[:60]!r}")

    def _end(self, fault: Fault, text: str) -> list[Event]:
        if self.ended:
            return []
        self.ended = True
        return [Ended(fault, text)]


def subject_of(frame: TwoPart) -> str | None:
    """The subject that a connection's first frame names; None if it is no handshake."""
    try:
        return read_handshake(frame)
    except FrameError:
        return None
