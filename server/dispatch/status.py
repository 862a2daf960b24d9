"""Errors as gRPC statuses: one table for every service."""

import asyncio

from ...base.errors import (
    CapacityError,
    InvalidRequestError,
    NoWorkersError,
    RouterError,
    StatusCode,
    WorkerError,
)
from ...workers.failures import EngineCallError, shortened

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
