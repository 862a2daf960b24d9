"""Who calls: a name, what it may do, and what its requests are called.

A caller gives its requests ids. Inside the router, and towards engines, a request of a named
caller is called NAME/ID, and one of the anonymous caller ID. No name has a slash in it, so one
caller's ids are never another one's. Bookings of selections have a mark in front that no request's
id may begin with, so that they and Generate requests are never the same either.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field

from ...base.errors import InvalidRequestError, RouterError
from .roles import ALL_ROLES, Role

_SELECTION = "\x1fselect/"


@dataclass(frozen=True)
class Caller:
    """Who makes a call. The anonymous one, without a name, is every caller that was not
    asked, and may do everything.
    """

    name: str = ""
    roles: frozenset[Role] = field(default=ALL_ROLES)


ANONYMOUS = Caller()

_current: ContextVar[Caller] = ContextVar("caller", default=ANONYMOUS)


def current_caller() -> Caller:
    """Who makes the call that this task serves."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """From now on this task serves a call of `caller`."""
    _current.set(caller)


REASONS = (
    "certificate",
    "content_type",
    "host",
    "listener",
    "no_token",
    "origin",
    "role",
    "token",
)
"""Why calls are refused."""


class AccessError(RouterError):
    """A call is refused: `authenticated`: the caller is known, and may not make it."""

    def __init__(self, message: str, *, reason: str, authenticated: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.authenticated = authenticated


def check_id(request_id: str) -> None:
    """InvalidRequestError if a request's id begins with a control character, as our marks do."""
    if request_id and request_id < " ":
        raise InvalidRequestError("the request id begins with a control character")


def generation_id(caller: Caller, request_id: str) -> str:
    """What a Generate request is called. Check ids of new requests first: `check_id`."""
    return f"{caller.name}/{request_id}" if caller.name else request_id


def selection_id(caller: Caller, request_id: str) -> str:
    """What the booking of a selection is called; never like a Generate request."""
    return f"{_SELECTION}{caller.name}/{request_id}"


def own_id(known_as: str, caller: Caller) -> str:
    """The id that a caller gave a Generate request, from what it is called."""
    return known_as.removeprefix(f"{caller.name}/") if caller.name else known_as
