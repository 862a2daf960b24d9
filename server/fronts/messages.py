"""What fronts and the decider tell each other: messages in frames over one connection each.

A frame is the length of its body (u32, big-endian) and a msgpack array of messages. A message that
is lost is a connection that is lost: all that a front has booked is free then.
"""

import struct
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ...base.errors import InvalidRequestError, RouterError
from ...workers.failures import Verdict
from ...workers.worker_url import WorkerUrl

VERSION = 1
MAX_FRAME_BYTES = 32 << 20
"""A prompt of a million tokens in blocks of 16 has 1 MB of hashes."""
MAX_CONTENT_BYTES = MAX_FRAME_BYTES - (1 << 20)
"""What clients decide about in one message: hashes, a call's request. The rest is for its head."""
FRAME_BYTES = 1 << 20
"""A batch of messages is cut into frames of at most this, if it can be."""
_LENGTH = struct.Struct(">I")
T = TypeVar("T")


class LinkError(RouterError):
    """The peer sends what no frame, or no message, can be: the connection cannot go on."""


def check_content(size: int) -> None:
    """InvalidRequestError if so many bytes of a request are more than a message can carry: it would
    cost its front the connection."""
    if size > MAX_CONTENT_BYTES:
        text = (
            f"{size} bytes are more than the {MAX_CONTENT_BYTES} that several fronts can decide on"
        )
        raise InvalidRequestError(text)


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Fields are told in their order."""


# A front's


class Hello(_Message, tag=0):
    """The first message. `token` is of the process: another one is another front in its place."""

    version: int
    front: int
    pid: int
    token: str


class Ask(_Message, tag=1):
    """Where does this request go? Hashes are u64 of the machine's order, none where the policy does
    not look at caches. `waited_s`: since it arrived. `again`: after a failed attempt. `beside`: for
    an attempt beside another one. Neither of those queues. `ttft_ms`: its objective."""

    serial: int
    booking_id: str
    isl: int
    local_hashes: bytes
    sequence_hashes: bytes
    excluded: list[int]
    pinned: tuple[int, int] | None
    priority: int
    jump: float
    output_tokens: int
    waited_s: float
    again: bool = False
    beside: bool = False
    tenant: str = ""
    ttft_ms: float | None = None


class Forget(_Message, tag=2):
    """Nobody waits for this answer any more: what was booked for it is free."""

    serial: int
    booking_id: str


class Booked(_Message, tag=3):
    """A request that is with a worker already, chosen before this connection was made."""

    ask: Ask
    worker: tuple[int, int]
    prefilled: bool
    output_tokens: int


class Prefilled(_Message, tag=4):
    """The first token is out or, if not `seen`, it is taken to be."""

    booking_id: str
    seen: bool
    cached_tokens: int | None = None


class Output(_Message, tag=5):
    """So many tokens are out in all."""

    booking_id: str
    tokens: int


class Freed(_Message, tag=6):
    """The request ended."""

    booking_id: str
    output_tokens: int | None = None


class Report(_Message, tag=7):
    """How an attempt went: a method of RequestReports, and its arguments."""

    kind: str
    worker_id: int
    seconds: float = 0.0
    pinned: bool = False
    verdict: Verdict | None = None


class Status(_Message, tag=8):
    """How the front is: a sign of life too. `fallbacks`: decisions that it has made by itself."""

    in_flight: int
    fallbacks: int
    draining: bool


class Family(_Message):
    """A metric family, with its samples: name, labels, value."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, dict[str, str], float]]


class WorkerTotals(_Message):
    """What a worker was given, as WorkerCounts has it, since the front began."""

    worker_id: int
    requests: int
    answers: int
    answer_s: float
    served: int
    served_s: float


class Totals(_Message, tag=9):
    """What the front has counted since it began."""

    families: list[Family]
    workers: list[WorkerTotals]


class Call(_Message, tag=10):
    """A call of RouterService, whose caller the front has checked. `serial` is of the front."""

    serial: int
    path: str
    request: bytes
    metadata: list[tuple[str, str]]
    caller: str
    roles: list[str]
    account: str


class Cancel(_Message, tag=11):
    """Nobody waits for the answer to a call any more."""

    serial: int


# The decider's


class Welcome(_Message, tag=32):
    """The answer to Hello. `hashes`: whether decisions look at caches."""

    version: int
    hashes: bool
    fronts: int


class Engine(_Message):
    """One engine of the fleet."""

    url: WorkerUrl
    weight: float
    draining: bool
    origin: str


class Engines(_Message, tag=33):
    """All engines that there are."""

    engines: list[Engine]


class Loads(_Message, tag=34):
    """Requests that each rank has, of all fronts: worker id, rank, requests. Others have none."""

    loads: list[tuple[int, int, int]]


class Decided(_Message, tag=35):
    """Where a request goes; the fields of Decision. `waited_s`: in the queue."""

    serial: int
    worker_id: int
    dp_rank: int
    number: int
    overlap_blocks: int
    request_blocks: int
    cached_tokens: int
    booked: bool
    host_overlap_blocks: int
    disk_overlap_blocks: int
    waited_s: float


class Queued(_Message, tag=36):
    """The request waits for its turn."""

    serial: int


class Refused(_Message, tag=37):
    """The request, or the call, goes nowhere. `kind`: invalid, overloaded, no_workers or failed."""

    serial: int
    kind: str
    text: str
    field: str | None = None


class Alive(_Message, tag=38):
    """The answer to Status."""


class Answer(_Message, tag=39):
    """The answer to a call: a message, or a status if `code` is not 0."""

    serial: int
    message: bytes
    code: int = 0
    details: str = ""


FromFront = (
    Hello | Ask | Forget | Booked | Prefilled | Output | Freed | Report | Status | Totals | Call
    | Cancel
)  # fmt: skip
FromDecider = Welcome | Engines | Loads | Decided | Queued | Refused | Alive | Answer

_encoder = msgspec.msgpack.Encoder()


def encode(messages: Sequence[_Message]) -> bytes:
    """The frames that say this. LinkError if a message is larger than a frame may be."""
    body = _encoder.encode(messages)
    if len(body) > FRAME_BYTES and len(messages) > 1:
        half = len(messages) // 2
        return encode(messages[:half]) + encode(messages[half:])
    if len(body) > MAX_FRAME_BYTES:
        raise LinkError(f"a frame of {len(body)} bytes is larger than any may be")
    return _LENGTH.pack(len(body)) + body


class MessageReader(Generic[T]):
    """Messages out of a stream that is cut anywhere. It holds less than the largest frame."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[list[T]] = msgspec.msgpack.Decoder(list[kind])
        self._kept = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """The messages that are complete now. LinkError if the stream cannot go on."""
        kept, messages, at = self._kept, list[T](), 0
        source: bytes | bytearray = data
        if kept:  # else what comes is mostly whole
            kept += data
            source = kept
        while len(source) - at >= _LENGTH.size:
            length: int = _LENGTH.unpack_from(source, at)[0]
            if length > MAX_FRAME_BYTES:
                raise LinkError(f"a frame of {length} bytes is larger than any may be")
            start = at + _LENGTH.size
            if len(source) < start + length:
                break
            at = start + length
            try:
                messages += self._decoder.decode(bytes(source[start:at]))
            except msgspec.MsgspecError as error:
                raise LinkError(f"a frame cannot be read: {error}") from None
        if kept:
            del kept[:at]
        elif at < len(data):
            kept += data[at:]
        return messages
