"""Errors as answers. How their bodies look is a server's choice: an ErrorForm."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from ...base.errors import RETRY_AFTER_S

_LATER = {"retry-after": str(RETRY_AFTER_S)}


class HttpError(Exception):
    """A request is answered with this status, and a text for people; 429 and 503 with when to try
    again."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or (_LATER if status in (429, 503) else {})


class ErrorAnswer(NamedTuple):
    """An error as a client gets it; the body is JSON."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}
    foreseen: bool = True
    """whether it is known what went wrong; False: it is a fault of ours"""


ErrorForm = Callable[[BaseException], ErrorAnswer]
"""Any error as an answer."""


def plain_error(error: BaseException) -> ErrorAnswer:
    """{"error": TEXT}; the text of what is no HttpError stays inside."""
    if not isinstance(error, HttpError):
        return ErrorAnswer(500, b'{"error":"internal error"}', foreseen=False)
    return ErrorAnswer(error.status, msgspec.json.encode({"error": str(error)}), error.headers)


def fault_of(error: BaseException) -> Exception:
    """What the error of a request is answered as, without the traceback, which holds all that it
    has passed. A cancellation is a fault like others: for one of a task that was not cancelled."""
    if not isinstance(error, Exception):
        error = RuntimeError(type(error).__name__)
    return error.with_traceback(None)
