"""Errors as gRPC statuses: one table for every service."""

import asyncio
import math

from ...base.errors import (
    MOST_RETRY_AFTER_S,
    PUSHBACK_KEY,
    RETRY_AFTER_KEY,
    RETRY_AFTER_S,
    CapacityError,
    InvalidRequestError,
    NoWorkersError,
    RouterError,
    StatusCode,
    WorkerError,
)
from ...workers.failures import EngineCallError, Origin, shortened

HTTP_STATUSES = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.OUT_OF_RANGE: 400,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.CANCELLED: 499,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}
"""gRPC's statuses as HTTP's; the others are 500."""
_TOO_LONG = (Origin.REQUEST_SIZE, Origin.ANSWER_SIZE, Origin.STATUS_SIZE)
_RETRIED = (StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAVAILABLE)
NO_WORKER = "no worker is ready: /workers, on the HTTP port, has each one's state and reason"


class RequestAbortedError(RouterError):
    """The request was aborted on demand."""


class RequestTimeoutError(RouterError):
    """The request hit a limit of ours on its time, or its client's deadline."""


class OvertakenError(RouterError):
    """An attempt was given up because another one of the same request was first to answer."""


class ClientGoneError(RouterError):
    """The client went away while a message was being written to it."""


def status_of(error: BaseException) -> tuple[StatusCode, str]:
    """The (code, text) for a client. An engine's own status passes through, its text without
    credentials and cut to what a client can take."""
    code, details = _status_of(error)
    return code, shortened(details)


def retry_after_s(error: BaseException) -> int | None:
    """Whole seconds after which the request may be sent again, as foreseen where it is, or as the
    engine says; None where that is no use, or not ours to say."""
    if isinstance(error, NoWorkersError):
        seconds = error.retry_after_s
    elif isinstance(error, EngineCallError):
        seconds = error.retry_after_s
        if seconds is None and (error.code() not in _RETRIED or error.origin in _TOO_LONG):
            return None
    elif isinstance(error, CapacityError | WorkerError):
        seconds = None
    else:
        return None
    if seconds is None or math.isnan(seconds):
        return RETRY_AFTER_S
    return math.ceil(min(max(seconds, RETRY_AFTER_S), MOST_RETRY_AFTER_S))


def retry_metadata(error: BaseException) -> tuple[tuple[str, str], ...]:
    """The same as trailing metadata."""
    seconds = retry_after_s(error)
    if seconds is None:
        return ()
    return (RETRY_AFTER_KEY, str(seconds)), (PUSHBACK_KEY, str(1000 * seconds))


def _status_of(error: BaseException) -> tuple[StatusCode, str]:
    if isinstance(error, EngineCallError):
        return error.code(), error.public
    if isinstance(error, InvalidRequestError):
        if error.field == "request_id":  # it belongs to a request that has not ended yet
            return StatusCode.ALREADY_EXISTS, str(error)
        return StatusCode.INVALID_ARGUMENT, str(error)
    overloaded = isinstance(error, NoWorkersError) and error.overloaded
    if overloaded or isinstance(error, CapacityError):
        return StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, NoWorkersError | WorkerError):
        return StatusCode.UNAVAILABLE, str(error)
    if isinstance(error, RequestAbortedError | ClientGoneError):
        return StatusCode.CANCELLED, str(error)
    if isinstance(error, RequestTimeoutError):
        return StatusCode.DEADLINE_EXCEEDED, str(error)
    if isinstance(error, asyncio.CancelledError):
        return StatusCode.CANCELLED, "the client went away"
    return StatusCode.INTERNAL, f"internal error: {type(error).__name__}"
