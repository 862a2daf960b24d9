"""What an answer's frames mean, from the handshake to the end. No socket."""

from typing import Any, NamedTuple, TypeAlias

import msgspec

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


class _Envelope(msgspec.Struct):
    data: Any = msgspec.UNSET
    complete_final: bool = False


_DECODERS: "dict[str, msgspec.msgpack.Decoder[_Envelope] | msgspec.json.Decoder[_Envelope]]" = {
    "msgpack": msgspec.msgpack.Decoder(_Envelope),
    "json": msgspec.json.Decoder(_Envelope),
}
_PROLOGUE = msgspec.json.Decoder(dict[str, str | None])


class ResponseReader:
    """Feed it the frames of one call-home connection; after Ended it says nothing more."""

    def __init__(self, codec: str) -> None:
        self._decode = _DECODERS["msgpack" if codec == "msgpack" else "json"].decode
        self._prologue = False
        self.ended = False

    def on_frame(self, frame: TwoPart) -> list[Event]:
        """What a frame behind the handshake says."""
        if self.ended:
            return []
        try:
            if not self._prologue:
                return self._on_prologue(frame)
            events: list[Event] = []
            if frame.body:
                events += self._on_data(frame.body)
            if frame.header and not self.ended:
                events += self._on_control(frame.header)
            return events
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
        events: list[Event] = []
        if envelope.data is not msgspec.UNSET:
            events.append(Data(envelope.data))
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
