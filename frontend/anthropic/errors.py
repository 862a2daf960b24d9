"""Errors in Anthropic's shape: {"type": "error", "error": {"type", "message"}} and a status."""

from typing import Any

from ...transport.http1 import ErrorAnswer
from ..openai import ApiError, error_answer

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """Its message names the field, for which this shape has no place."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    text = error.body["error"]["message"]
    if error.param is not None and error.param not in text:
        text = f"{error.param}: {text}"
    return {"type": "error", "error": {"type": _TYPES.get(error.status, other), "message": text}}


def messages_error(error: BaseException) -> ErrorAnswer:
    """Any error as an answer: the status and headers are those of OpenAI's shape."""
    return error_answer(error, error_body)
