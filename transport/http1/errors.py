"""Errors as answers. How their bodies look is a server's choice: an ErrorForm."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec


class HttpError(Exception):
    """A request is answered with this status, and a text for people."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


class ErrorAnswer(NamedTuple):
    """An error as a client gets it; the body is JSON."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


ErrorForm = Callable[[BaseException], ErrorAnswer]
"""Any error as an answer; one that is a fault of ours has status 500."""


def plain_error(error: BaseException) -> ErrorAnswer:
    """{"error": TEXT}; the text of what is no HttpError stays inside."""
    if not isinstance(error, HttpError):
        return ErrorAnswer(500, b'{"error":"internal error"}')
    return ErrorAnswer(error.status, msgspec.json.encode({"error": str(error)}), error.headers)
