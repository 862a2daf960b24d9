"""Errors as gRPC statuses: one table for every service."""

import asyncio

import grpc

from ...runtime.errors import InvalidRequestError, NoWorkersError, RouterError, WorkerError
from ...workers.failures import shortened


class RequestAbortedError(RouterError):
    """Somebody asked to abort the request, and so it was."""


class RequestTimeoutError(RouterError):
    """The request hit a limit of ours on its time, or its client's deadline."""


class OvertakenError(RouterError):
    """An attempt was given up because another one of the same request was first to answer."""


class ClientGoneError(RouterError):
    """The client went away while a message was being written to it."""


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    """The (code, text) a client is told. An engine's own status passes through, its
    text cut to what a client can take."""
    code, details = _status_of(error)
    return code, shortened(details)


def _status_of(error: BaseException) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, grpc.RpcError):
        return error.code(), error.details() or ""
    if isinstance(error, InvalidRequestError):
        if error.field == "request_id":  # it belongs to a request that has not ended yet
            return grpc.StatusCode.ALREADY_EXISTS, str(error)
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, NoWorkersError) and error.overloaded:
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, NoWorkersError | WorkerError):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    if isinstance(error, RequestAbortedError | ClientGoneError):
        return grpc.StatusCode.CANCELLED, str(error)
    if isinstance(error, RequestTimeoutError):
        return grpc.StatusCode.DEADLINE_EXCEEDED, str(error)
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED, "the client went away"
    return grpc.StatusCode.INTERNAL, f"internal error: {type(error).__name__}"
