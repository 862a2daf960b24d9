"""What can go wrong, split by who can do something about it, and gRPC's words for it."""

from enum import IntEnum

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of a peer's bytes that are no JSON or msgpack, not of their type, or nested
without end."""
UNREADABLE_MESSAGE = "the message is not of the method's type"
"""The details of a call's status if protobuf cannot parse its request."""


RETRY_AFTER_S, MOST_RETRY_AFTER_S = 1, 60
"""Seconds after which a refused request may be sent again: at least, also where nothing is
foreseen, and at most."""
RETRY_AFTER_KEY, PUSHBACK_KEY = "retry-after", "grpc-retry-pushback-ms"
"""That in trailing metadata: in seconds as in HTTP, and as gRPC's own retries obey it (A6)."""


class RouterError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(RouterError):
    """The operator asked for what cannot be had; `key` is the option's name, if it is one's."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class InvalidRequestError(RouterError):
    """The caller's request can never succeed as it is; `field` names the part at fault, and
    `request_id` the request if it was read that far."""

    def __init__(self, message: str, *, field: str | None = None, request_id: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.request_id = request_id


class NoWorkersError(RouterError):
    """No worker may take this request now; trying again later may help.

    `overloaded`: there are workers, but they have all they can take. `retry_after_s`: seconds until
    one would take it, as foreseen; None: not known.
    """

    def __init__(
        self, message: str, *, overloaded: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.overloaded = overloaded
        self.retry_after_s = retry_after_s


class CapacityError(RouterError):
    """All that the caller, or all callers together, may have of something of ours is in use; trying
    again later may help."""


class WorkerError(RouterError):
    """A worker is gone or breaks the protocol."""

    def __init__(self, message: str, *, worker_id: int | None = None) -> None:
        super().__init__(message)
        self.worker_id = worker_id


class EventError(RouterError, RuntimeError):
    """An event that cannot be decoded, or contradicts what is known; `worker_id` if it was read.

    `code` names the contradiction. A RuntimeError too, because that is what Dynamo's index raises.
    """

    def __init__(
        self, message: str, *, worker_id: int | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.worker_id = worker_id
        self.code = code


class StatusCode(IntEnum):
    """How a call ended: gRPC's codes (its doc/statuscodes.md), as they stand on the wire.

    grpc has an enum of the same names. It is asked for only where grpc itself carries a call: the
    way of a request does without it.
    """

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
