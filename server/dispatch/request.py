"""A request in flight, its attempts, the way to its client, and the trace of them."""

import asyncio
import enum
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec import field

from ...base.errors import StatusCode
from ...base.request_record import HttpTrace, RequestRecord
from ...router.affinity import Session
from ...router.pairs import PairDecision
from ...router.placement import Placement
from ...router.policy import Decision
from ...workers.channels import Metadata
from ...workers.dialects import EngineCall
from ...workers.failures import Origin
from ...workers.trtllm_proto import SERVICE
from ..handoff import PrefillLeg, SharedRequest
from ..migration import CarriedStream
from .generate_request import Change, GenerateFacts
from .retries import FailedAttempt, FailedAttempts
from .status import RequestAbortedError

GENERATE = f"/{SERVICE}/Generate"
"""The route of a request, whatever it came over."""
Write: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Writes a message, and waits while the client does not read."""
Put: TypeAlias = Callable[[bytes], bool]
"""Writes a message if that need not wait. False: nothing was done."""


class TakenBack(enum.Enum):
    """Why the router itself ended an attempt or a request."""

    SILENCE = Origin.SILENCE, "request_timeout_s", "it was silent for too long"
    ATTEMPT = Origin.SILENCE, "attempt_timeout_s", "it did not begin to answer in time"
    WORKER_DOWN = Origin.WORKER_DOWN, None, "it turned unhealthy"
    WRITE = Origin.CLIENT, "write_timeout_s", "its client did not read for too long"
    TOTAL = Origin.DEADLINE, "total_timeout_s", "the request took too long"
    OVERTAKEN = Origin.ROUTER, None, "another worker was first to answer"

    def __init__(self, origin: Origin, limit: str | None, text: str) -> None:
        self.origin = origin
        self.limit = limit
        """the setting that was hit"""
        self.text = text


class Carrier(Protocol):
    """Has the call of one request carried by a proxy, in place of the client of its worker."""

    fallbacks: int
    """how many other workers the decision is to name for it"""

    def send(self, request: "Request", attempt: "Attempt") -> EngineCall:
        """Begin the call of an attempt, booked just now. RouterError if it cannot go there."""
        ...

    @property
    def moved(self) -> bool:
        """Whether the proxy has brought the request to another worker than the attempt's: then its
        call fails, and one more attempt is booked. Otherwise what fails has failed."""
        ...


class RequestTrace(Protocol):
    """Observer of one request's lifecycle. Called on the event loop, in order."""

    def decided(self, request: "Request", attempt: "Attempt") -> None:
        """A worker was chosen for an attempt."""

    def sent(self, request: "Request", attempt: "Attempt", metadata: Metadata) -> Metadata:
        """An attempt begins; the metadata to send in place of these."""
        ...

    def attempt_ended(self, request: "Request", attempt: "Attempt") -> None:
        """However it did: a failure is the last of `request.failures`."""

    def ended(self, request: "Request | None", code: StatusCode, details: str) -> None:
        """The request ended; None if it could not be read."""


class CallTrace(Protocol):
    """Observer of one call that books nothing. Called on the event loop, in order."""

    def sent(self, worker_id: int, address: str, attempt: int, metadata: Metadata) -> Metadata:
        """An attempt begins, the first is 1; the metadata to send in place of these."""
        ...

    def attempt_ended(self, messages: int, failure: FailedAttempt | None) -> None:
        """However it did, after `messages`."""

    def ended(self, code: StatusCode, details: str) -> None: ...


class Tracing(Protocol):
    """Who traces requests."""

    def begin_http(self, record: RequestRecord) -> HttpTrace | None:
        """A request came over HTTP, with the trace context of its caller in its headers. None: it
        is not traced."""
        ...

    def begin(self, metadata: Metadata) -> RequestTrace:
        """A Generate has come, with the trace context of its caller in the metadata."""
        ...

    def begin_call(self, method: str, metadata: Metadata) -> CallTrace:
        """The same of Embed and GetTokenizer."""
        ...


class NoTrace:
    """Traces nothing: a request's trace context goes to its worker as it came."""

    def begin_http(self, record: RequestRecord) -> HttpTrace | None:
        return None

    def begin(self, metadata: Metadata) -> RequestTrace:
        return self

    def begin_call(self, method: str, metadata: Metadata) -> CallTrace:
        return NO_CALL_TRACE

    def decided(self, request: "Request", attempt: "Attempt") -> None: ...

    def sent(self, request: "Request", attempt: "Attempt", metadata: Metadata) -> Metadata:
        return metadata

    def attempt_ended(self, request: "Request", attempt: "Attempt") -> None: ...

    def ended(self, request: "Request | None", code: StatusCode, details: str) -> None: ...


class NoCallTrace:
    """The same of a call that books nothing."""

    def sent(self, worker_id: int, address: str, attempt: int, metadata: Metadata) -> Metadata:
        return metadata

    def attempt_ended(self, messages: int, failure: FailedAttempt | None) -> None: ...

    def ended(self, code: StatusCode, details: str) -> None: ...


NO_TRACE, NO_CALL_TRACE = NoTrace(), NoCallTrace()


class AttemptClient(Protocol):
    """The way to what runs an attempt: one engine, or a pair of them. See EngineClient."""

    address: str

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> EngineCall: ...
    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]: ...


class Attempt(msgspec.Struct):
    """A request on one worker, where it is booked. Times are seconds of the dispatcher's clock.

    Here and in Request only the fields that are not Final change after it was made.
    """

    decision: Final[Decision]
    worker_id: Final[int]
    """of the decision"""
    booking_id: Final[str]
    """the request's own id, except for a hedge"""
    client: Final[AttemptClient | None]
    """None: the worker has no address any more"""
    sent_at: Final[float]
    silent_since: float | None
    """when it was sent, or the client took the last message; None while the client takes one"""
    prefill_tokens: Final[int]
    """of the prompt that the worker has to compute, as far as is known"""
    queue_s: Final[float]
    """from the request's arrival to its first decision"""
    decision_s: Final[float]
    """how long this attempt's decision took"""
    pair: Final[PairDecision]
    """what its decision is a part of"""
    leg: Final[PrefillLeg | None] = None
    """of its prefill worker, if it has one"""
    foreseen_ttft_s: Final[tuple[float, float] | None] = None
    """from its booking to its first token, as the policy foresaw it then, and to that of the
    soonest worker that it might have gone to; where they are noted"""
    call: EngineCall | None = None
    """while it runs, as far as the router knows"""
    messages: int = 0
    """begun to be passed to the client; from the first one on no other worker is asked for them"""
    taken_back: TakenBack | None = None
    """why the router itself ended it"""
    ended: bool = False
    """its booking was released"""

    @property
    def is_unanswered(self) -> bool:
        """Whether its worker has said nothing: all that the client has of it is the token of its
        prefill worker, if anything."""
        return not self.messages or (self.leg is not None and self.leg.has_spoken)


class Hedge(msgspec.Struct):
    """A second attempt of a request beside its first: planned, under way, or over."""

    timer: asyncio.TimerHandle | None
    """until the second attempt begins"""
    task: "asyncio.Task[Exception | None] | None" = None
    """waits for the first message; a failure if none came"""
    attempt: Attempt | None = None
    answers: AsyncGenerator[bytes, None] | None = None
    first: bytes = b""
    is_open: bool = True
    """neither attempt has begun to answer, and the request goes on"""
    won: bool = False
    """the first message came, and nothing from the other worker before it"""
    dropped: bool = False
    """the request does not need it any more"""


class Aborted(enum.Enum):
    """Why a request is stopped while its worker has it."""

    ON_DEMAND = "on demand"
    """its client asked for that"""
    READ = "read"
    """its client has all that it wants of the answer"""


class Request(msgspec.Struct):
    """One request in flight and its newest attempt. Times are of the dispatcher's clock."""

    request_id: Final[str]
    body: Final[bytes]
    """as it is sent to workers, except for what is left of a stream that moved"""
    facts: Final[GenerateFacts]
    arrived: Final[float]
    placement: Placement
    """of the request, or of what is left of a stream that moved"""
    deadline: Final[float] = math.inf
    """the client's; infinite if it has none"""
    failures: Final[FailedAttempts] = field(default_factory=partial(FailedAttempts, 1))
    task: Final["asyncio.Task[object] | None"] = None
    trace: Final[RequestTrace] = NO_TRACE
    stream: Final[CarriedStream | None] = None
    """what may go on at another worker in mid-stream"""
    session: Final[Session | None] = None
    """that it names, whether or not sessions have workers"""
    carrier: Final[Carrier | None] = None
    """None: the clients of workers carry it"""
    shared: Final[SharedRequest | None] = None
    """what two workers need to know of it, where it may have two"""
    attempt: Attempt | None = None
    """the current one, or the last"""
    hedge: Hedge | None = None
    retrying: bool = False
    """it is counted by the retry budget"""
    aborted: Aborted | None = None
    """why its worker is asked to abort it"""
    first_message_at: float | None = None
    last_message: bytes = b""
    last_message_at: float = 0.0

    @property
    def decision(self) -> Decision | None:
        """Of its newest attempt."""
        return None if self.attempt is None else self.attempt.decision

    @property
    def prefill(self) -> Decision | None:
        """Of its newest attempt's prefill worker, if another one than that which decodes."""
        return None if self.attempt is None else self.attempt.pair.prefill

    @property
    def newest_body(self) -> bytes:
        """As it is sent now: what is left of a stream that moved, else all."""
        return self.body if self.stream is None else self.stream.body

    @property
    def queue_s(self) -> float:
        """From its arrival to its first decision."""
        return 0.0 if self.attempt is None else self.attempt.queue_s

    @property
    def messages(self) -> int:
        """That its client was sent, by all workers that it was on."""
        if self.stream is not None:
            return self.stream.messages
        return 0 if self.attempt is None else self.attempt.messages

    @property
    def moves(self) -> int:
        """How often it went on at another worker in mid-stream."""
        return 0 if self.stream is None else self.stream.moves

    def check_aborted(self) -> None:
        """RequestAbortedError if its client asked to abort it."""
        if self.aborted:
            raise RequestAbortedError(f"request {self.request_id} was aborted")

    def take_back(self, attempt: Attempt, why: TakenBack) -> bool:
        """End one of its attempts; False if that has ended, or is being ended already."""
        if attempt.taken_back is not None or attempt.call is None:
            return False
        attempt.taken_back = why
        if attempt.silent_since is None:
            assert self.task is not None
            self.task.cancel()
        else:
            attempt.call.cancel()
        return True


class Reply:
    """Takes messages at once where `put` does; those that it does not are for `write`.

    Its caller gives it one message after another: the next one when `write` has returned.
    Both raise ClientGoneError, or what a change does, in which case nothing was written.
    """

    __slots__ = ("changes", "put", "write")

    def __init__(self, write: Write, put: Put | None = None) -> None:
        self.write = write
        self.put = put
        self.changes: list[Change] = []
        """of each message, in their order"""

    def take(self, message: bytes) -> bytes | None:
        """A message of an engine; what is left to be written, None: nothing."""
        for change in self.changes:
            message = change(message)
        if self.put is not None and self.put(message):
            return None
        return message

    async def send(self, message: bytes) -> None:
        """A message of an engine, from its change to its end."""
        rest = self.take(message)
        if rest is not None:
            await self.write(rest)
