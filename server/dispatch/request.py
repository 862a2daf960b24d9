"""A request on its way through the router, and the abort of one whose client is gone."""

import asyncio
import contextlib
import enum
import math
from collections.abc import Set
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ...base.errors import StatusCode
from ...base.identity import WorkerWithDpRank
from ...router.admission import NO_OBJECTIVES, NORMAL, Objectives, Urgency
from ...router.affinity import Session
from ...router.policy import Decision
from ...workers.channels import Metadata
from ...workers.dialects import EngineCall, EngineClient
from ...workers.failures import EngineCallError, Origin
from ..migration import CarriedStream
from .attempts import Attempt, Attempts
from .generate_request import GenerateFacts
from .status import RequestAbortedError

ABORT_TIMEOUT_S = 2.0
MAX_PENDING_ABORTS = 1024


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


class RequestTrace(Protocol):
    """Hears of one request's stations, on the event loop, in their order."""

    def decided(self, flight: "Flight") -> None:
        """A worker was chosen: `flight.decision`, in `flight.decision_s`."""

    def sent(self, flight: "Flight", metadata: Metadata) -> Metadata:
        """An attempt begins; the metadata to send in place of these."""
        ...

    def attempt_ended(self, flight: "Flight") -> None:
        """However it did: a failure is the last of `flight.attempts`."""

    def ended(self, flight: "Flight | None", code: StatusCode, said: str) -> None:
        """The request ended; None if it could not be read."""


class CallTrace(Protocol):
    """Hears of one call that books nothing, on the event loop."""

    def sent(self, worker_id: int, address: str, attempt: int, metadata: Metadata) -> Metadata:
        """An attempt begins, the first is 1; the metadata to send in place of these."""
        ...

    def attempt_ended(self, messages: int, failure: Attempt | None) -> None:
        """However it did, after so many messages."""

    def ended(self, code: StatusCode, said: str) -> None: ...


class Tracing(Protocol):
    """Who traces requests."""

    def begin(self, metadata: Metadata) -> RequestTrace:
        """A Generate has come, with the trace context of its caller in the metadata."""
        ...

    def begin_call(self, method: str, metadata: Metadata) -> CallTrace:
        """The same of Embed and GetTokenizer."""
        ...


class NoTrace:
    """Traces nothing: a request's trace context goes to its worker as it came."""

    def begin(self, metadata: Metadata) -> RequestTrace:
        return self

    def begin_call(self, method: str, metadata: Metadata) -> CallTrace:
        return NO_CALL_TRACE

    def decided(self, flight: "Flight") -> None: ...

    def sent(self, flight: "Flight", metadata: Metadata) -> Metadata:
        return metadata

    def attempt_ended(self, flight: "Flight") -> None: ...

    def ended(self, flight: "Flight | None", code: StatusCode, said: str) -> None: ...


class NoCallTrace:
    """The same of a call that books nothing."""

    def sent(self, worker_id: int, address: str, attempt: int, metadata: Metadata) -> Metadata:
        return metadata

    def attempt_ended(self, messages: int, failure: Attempt | None) -> None: ...

    def ended(self, code: StatusCode, said: str) -> None: ...


NO_TRACE, NO_CALL_TRACE = NoTrace(), NoCallTrace()


@dataclass(slots=True)
class Flight:
    """One request in flight. Times are seconds of the dispatcher's clock."""

    request_id: str
    body: bytes
    facts: GenerateFacts
    arrived: float
    deadline: float = math.inf
    """the client's; infinite if it has none"""
    attempts: Attempts = field(default_factory=partial(Attempts, 1))
    pinned: WorkerWithDpRank | None = None
    session: Session | None = None
    urgency: Urgency = NORMAL
    objectives: Objectives = NO_OBJECTIVES
    tenant: str = ""
    """between which the router is fair: see TenantConfig"""
    unfit: Set[int] = frozenset()
    """the workers that cannot take the prompt"""
    task: "asyncio.Task[object] | None" = None
    decision: Decision | None = None
    """of the current attempt"""
    queue_s: float = 0.0
    """from its arrival to its first decision"""
    decision_s: float = 0.0
    """how long the current attempt's decision took"""
    client: EngineClient | None = None
    call: EngineCall | None = None
    """of the current attempt, while it goes on"""
    sent_at: float = 0.0
    """when the current attempt began"""
    messages: int = 0
    """of the current attempt, begun to be passed to the client; from the first one on no other
    worker is asked for the same"""
    stream: CarriedStream | None = None
    """what may go on at another worker in mid-stream"""
    moves: int = 0
    """how often it did"""
    first_message_at: float = 0.0
    last_message: bytes = b""
    last_message_at: float = 0.0
    since: float = 0.0
    """since when the worker owes us a message or, if `writing`, the client has not taken one"""
    writing: bool = False
    taken_back: TakenBack | None = None
    """the current attempt was ended by the router itself"""
    uncached_tokens: int = 0
    """prompt tokens that the current worker has to compute, as far as is known"""
    counts_prefill: bool = False
    """its prompt counts as not computed yet"""
    prefill_timer: asyncio.TimerHandle | None = None
    retrying: bool = False
    """it is counted by the retry budget"""
    trace: RequestTrace = NO_TRACE
    aborted: bool = False
    """somebody asked to abort it"""
    booking_id: str = ""
    """of the current attempt; its own id, but for a hedge"""
    hedged: bool = False
    """there was a second attempt beside the first"""
    hedge_timer: asyncio.TimerHandle | None = None
    hedging: bool = False
    """a second attempt is planned or under way, and neither has begun to answer"""

    def __post_init__(self) -> None:
        self.booking_id = self.booking_id or self.request_id

    def check_aborted(self) -> None:
        """RequestAbortedError if somebody asked to abort it."""
        if self.aborted:
            raise RequestAbortedError(f"request {self.request_id} was aborted")

    def take_back(self, why: TakenBack) -> bool:
        """End the current attempt; False if there is none, or it is being ended already."""
        if self.taken_back is not None or self.call is None:
            return False
        self.taken_back = why
        if self.writing:
            assert self.task is not None
            self.task.cancel()
        else:
            self.call.cancel()
        return True


class Aborts:
    """Sends aborts in the background, each bounded in time, all bounded in number.

    The stream of such a request was cancelled already, so an abort that is lost costs little: a
    worker that cannot be told knows, or is gone.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.dropped = 0
        """not sent, because too many were on their way"""

    @property
    def pending(self) -> int:
        return len(self._tasks)

    def send(self, client: EngineClient, request_id: str) -> None:
        if len(self._tasks) >= MAX_PENDING_ABORTS:
            self.dropped += 1
            return
        task = asyncio.create_task(_send(client, request_id), name=f"abort-{request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for those on their way, which is bounded by their timeout."""
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _send(client: EngineClient, request_id: str) -> None:
    with contextlib.suppress(EngineCallError):
        await client.abort(request_id, timeout=ABORT_TIMEOUT_S)
