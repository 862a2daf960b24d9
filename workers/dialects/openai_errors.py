"""What an HTTP status, or an error in an answer, is to failures.py. Pure."""

from typing import Any

import msgspec

from ...base.errors import RETRY_AFTER_KEY, UNREADABLE, StatusCode
from ..failures import EngineCallError, Origin, shortened

_CODES = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    405: StatusCode.UNIMPLEMENTED,
    408: StatusCode.UNAVAILABLE,
    413: StatusCode.RESOURCE_EXHAUSTED,
    422: StatusCode.INVALID_ARGUMENT,
    429: StatusCode.RESOURCE_EXHAUSTED,
    501: StatusCode.UNIMPLEMENTED,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
    529: StatusCode.RESOURCE_EXHAUSTED,
}
_TOO_LARGE = 413


def error_of(status: int, body: bytes = b"", retry_after: str | None = None) -> EngineCallError:
    """The failure that an answer of this status is; `body` is the beginning of it, at least."""
    try:
        said = _words_of(msgspec.json.decode(body))
    except UNREADABLE:
        said = body.decode(errors="replace").strip()
    text = f"HTTP {status}: {said}" if said else f"HTTP {status}"
    trailing: tuple[tuple[str, str], ...] = ()
    if retry_after:
        text += f" (retry after {retry_after[:64]})"
        trailing = ((RETRY_AFTER_KEY, retry_after[:64]),)
    origin = Origin.REQUEST_SIZE if status == _TOO_LARGE else Origin.ENGINE
    code = _CODES.get(status, StatusCode.INTERNAL)
    return EngineCallError(origin, code, shortened(text), trailing)


def error_in(error: Any) -> EngineCallError:
    """The failure that `error` of an answer tells, which began as if all were well."""
    code = str(error.get("code")) if isinstance(error, dict) else ""
    status = int(code) if code.isdecimal() and len(code) == 3 else 500
    text = shortened(_words_of({"error": error}))
    return EngineCallError(Origin.ENGINE, _CODES.get(status, StatusCode.INTERNAL), text)


def _words_of(body: Any) -> str:
    """The message of OpenAI's {"error": {"message"}}, or of what is close to it."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        for key in ("message", "detail"):
            if isinstance(error.get(key), str):
                return str(error[key])
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()
