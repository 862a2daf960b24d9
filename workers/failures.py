"""What a failed call means: whose fault it is, whether another worker may be tried, its label.

The one table for dispatch, health and metrics. Pure.
"""

import enum
import re
from collections.abc import Callable
from typing import NamedTuple

from ..base.errors import PUSHBACK_KEY, RETRY_AFTER_KEY, StatusCode
from ..base.urls import redact_text

MAX_DETAILS = 1024
"""Characters of an error's text that are passed on: beyond 8 to 16 kB of metadata a client's
gRPC replaces the whole status by RESOURCE_EXHAUSTED."""


class Origin(enum.Enum):
    """Where a failure arose."""

    ENGINE = "engine"
    """the engine's application ended the call with a status"""
    CONNECT = "connect"
    """there was no connection: the request did not reach the engine"""
    TRANSPORT = "transport"
    """the connection broke under the request"""
    ANSWER_SIZE = "answer_size"
    """our gRPC client did not take a message: it is larger than our limit"""
    REQUEST_SIZE = "request_size"
    """our gRPC client did not send the request: it is larger than our limit"""
    STATUS_SIZE = "status_size"
    """our gRPC client did not take the engine's status: its text or metadata are too large"""
    EMPTY = "empty"
    """the call ended with OK and without a message"""
    SILENCE = "silence"
    """a time-out of ours: the engine sent no message for too long"""
    DEADLINE = "deadline"
    """the client's deadline passed, or our limit on the request's whole time"""
    WORKER_DOWN = "worker_down"
    """we took the request back, because its worker was found to be out of order"""
    CLIENT = "client"
    """the client went away, stopped reading, or the request was aborted"""
    ROUTER = "router"
    """an error of our own"""


_PUBLIC = {
    Origin.CONNECT: "it could not be reached",
    Origin.TRANSPORT: "the connection to it was lost",
}
"""The text for clients where `details` are our transport's, which names hosts and ports."""
RETRY_UNITS = {RETRY_AFTER_KEY: 1.0, PUSHBACK_KEY: 1e-3}
_SECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)


class EngineCallError(Exception):
    """A call to an engine that failed, in gRPC's words whatever the dialect, and where it did.

    Its texts are without the credentials of URLs in them. `details` are for operators, `public` is
    for clients: without addresses and names of the cluster, as far as they are not the engine's own
    words.
    """

    def __init__(
        self,
        origin: Origin | Callable[[], Origin],
        code: StatusCode,
        details: str,
        trailing: tuple[tuple[str, str | bytes], ...] = (),
        public: str | None = None,
    ) -> None:
        """`public`: None where it follows from origin and details."""
        details = redact_text(details)
        super().__init__(details)
        self._origin = origin
        self._code, self._details, self._trailing = code, details, trailing
        self._public = None if public is None else redact_text(public)

    @property
    def origin(self) -> Origin:
        """Ask right after it failed: it may depend on how the connection fares by then."""
        if not isinstance(self._origin, Origin):
            self._origin = self._origin()
        return self._origin

    def code(self) -> StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    @property
    def public(self) -> str:
        """The text for a client."""
        if self._public is not None:
            return self._public
        return _PUBLIC.get(self.origin, self._details)

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Of the engine's status, without those that show credentials."""
        return tuple(pair for pair in self._trailing if not _shows_secret(pair[1]))

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the engine asks to be tried again; None where it does not."""
        for key, value in self._trailing:
            unit = RETRY_UNITS.get(key)
            if unit is not None and isinstance(value, str) and _SECONDS.fullmatch(value):
                return int(value) * unit
        return None


class Blame(enum.Enum):
    """Whose fault it is."""

    CLIENT = "client"
    REQUEST = "request"
    """unless another worker serves it: then it is the worker that takes none"""
    WORKER = "worker"
    EITHER = "either"
    """the request's or the worker's: decided by how another worker gets on with the request"""
    OVERLOAD = "overload"
    """the worker's for the moment: it is full, and says so"""
    SLOW = "slow"
    """the worker's, if others answered meanwhile and it answered none"""
    TRANSPORT = "transport"
    US = "us"


class Retry(enum.Enum):
    """Whether another worker may be tried, as long as nothing was passed to the client."""

    NO = 0
    ONCE = 1
    """one more opinion: two workers that fail alike say that it is the request"""
    YES = 2
    """as often as attempts are allowed"""


class Verdict(NamedTuple):
    """What to make of a failure. `cause` is a label of metrics and logs."""

    blame: Blame
    retry: Retry
    cause: str


_REQUESTS = (StatusCode.INVALID_ARGUMENT, StatusCode.OUT_OF_RANGE)
# The worker cannot do it now: another one has every chance. CANCELLED is what a server that
# shuts down says; a call that we cancel ourselves is not judged by its status.
_PASSING = (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)

_BY_ORIGIN = {
    Origin.CONNECT: Verdict(Blame.TRANSPORT, Retry.YES, "connect"),
    Origin.TRANSPORT: Verdict(Blame.TRANSPORT, Retry.YES, "connection_lost"),
    Origin.ANSWER_SIZE: Verdict(Blame.REQUEST, Retry.ONCE, "answer_too_large"),
    Origin.REQUEST_SIZE: Verdict(Blame.REQUEST, Retry.NO, "request_too_large"),
    Origin.STATUS_SIZE: Verdict(Blame.EITHER, Retry.ONCE, "status_too_large"),
    Origin.EMPTY: Verdict(Blame.WORKER, Retry.YES, "empty"),
    Origin.SILENCE: Verdict(Blame.SLOW, Retry.YES, "silence"),
    Origin.DEADLINE: Verdict(Blame.SLOW, Retry.NO, "deadline"),
    Origin.WORKER_DOWN: Verdict(Blame.TRANSPORT, Retry.YES, "worker_down"),
    Origin.CLIENT: Verdict(Blame.CLIENT, Retry.NO, "client"),
    Origin.ROUTER: Verdict(Blame.US, Retry.ONCE, "router_fault"),
}

CONNECTION_CAUSES = frozenset(
    _BY_ORIGIN[origin].cause for origin in (Origin.CONNECT, Origin.TRANSPORT)
)
"""Causes that say that a worker is not connected."""


_NOT_OF_WORKERS = (Blame.CLIENT, Blame.REQUEST, Blame.US)
WORKER_CAUSES = (
    *(v.cause for v in _BY_ORIGIN.values() if v.blame not in _NOT_OF_WORKERS),
    *("blank", "internal", "resource_exhausted", "unavailable", "unknown"),
)
"""Counted of each worker from 0 on; other statuses from the first one on."""


def judge(origin: Origin, code: StatusCode, *, started: bool) -> Verdict:
    """What a failure means. `started`: a message was passed to the client already.

    `code` matters for Origin.ENGINE only. Nothing that has started is retried.
    """
    verdict = _of_engine(code) if origin is Origin.ENGINE else _BY_ORIGIN[origin]
    if not started:
        return verdict
    blame = verdict.blame
    if origin is Origin.DEADLINE:
        blame = Blame.CLIENT  # it was being answered; its client gave too little time
    return Verdict(blame, Retry.NO, verdict.cause)


def _of_engine(code: StatusCode) -> Verdict:
    cause = code.name.lower()
    if code in _REQUESTS:
        return Verdict(Blame.REQUEST, Retry.ONCE, cause)
    if code is StatusCode.RESOURCE_EXHAUSTED:
        return Verdict(Blame.OVERLOAD, Retry.YES, cause)
    return Verdict(Blame.EITHER, Retry.YES if code in _PASSING else Retry.ONCE, cause)


# What gRPC's core writes when its client side ends a call: as it is, or "Stream removed (...)".
_STREAM_REMOVED = re.compile(r"Stream removed \((.*)\)", re.DOTALL)
_MESSAGE_SIZE = re.compile(r"CLIENT: (Received|Sent) message larger than max \(\d+ vs\. \d+\)")
_STATUS_SIZE = re.compile(
    r"received (?:initial |trailing )?metadata size exceeds (?:hard|soft) limit \(.*", re.DOTALL
)
# With these codes: a connection that was lost, or that carried what is no HTTP/2.
_BROKEN = (StatusCode.UNAVAILABLE, StatusCode.UNKNOWN, StatusCode.INTERNAL)
_NOT_READ = "Failed parsing HTTP/2 ("  # by the engine's gRPC
_NOT_CONNECTED = "failed to connect to all addresses"


def origin_of(code: StatusCode, details: str, *, connected: bool) -> Origin:
    """Where the failure of a gRPC call arose. gRPC itself does not show it: a status that the
    client side makes up looks like one that was sent.

    `connected`: the channel is connected now that the call has failed. An engine that words
    its own status exactly as gRPC's core does is believed to mean the same.
    """
    removed = _STREAM_REMOVED.fullmatch(details)
    text = removed.group(1) if removed else details
    if code is StatusCode.RESOURCE_EXHAUSTED:
        size = _MESSAGE_SIZE.fullmatch(text)
        if size:
            return Origin.ANSWER_SIZE if size.group(1) == "Received" else Origin.REQUEST_SIZE
        if _STATUS_SIZE.fullmatch(text):
            return Origin.STATUS_SIZE
    if code in _BROKEN and removed:
        return Origin.TRANSPORT
    if code is StatusCode.UNAVAILABLE:
        if details.startswith(_NOT_CONNECTED):
            return Origin.CONNECT
        if not connected or details.startswith(_NOT_READ):
            return Origin.TRANSPORT
    return Origin.ENGINE


def _shows_secret(value: str | bytes) -> bool:
    text = value if isinstance(value, str) else value.decode("latin-1")
    return redact_text(text) != text


def shortened(details: str) -> str:
    """An error's text for a client, without credentials, cut to what every gRPC client takes."""
    details = redact_text(details)
    if len(details) <= MAX_DETAILS:
        return details
    return f"{details[: MAX_DETAILS - 4]} ..."
