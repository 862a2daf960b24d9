"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}} and a status.

Clients retry 408, 409, 429 and from 500 on, unless the answer says that it does not help, and obey
retry-after.
"""

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from ...base.errors import RETRY_AFTER_S, InvalidRequestError, RouterError
from ...base.request_record import RequestRecord
from ...server.dispatch import HTTP_STATUSES, PROMPT_LIMIT, retry_after_s, status_of
from ...transport.http1 import ErrorAnswer, HttpError
from ...workers.failures import EngineCallError, shortened

TOO_LONG = "context_length_exceeded"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    499: "cancelled",
    501: "invalid_request_error",
    505: "invalid_request_error",
}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
"""OpenAI's, of what has one by its status alone; a code is a text or null: some clients take no
number."""
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_PATH = re.compile(r" - at `\$\.?([^`]*)`")


def error_type(status: int) -> str:
    """The `type` of an error's body, by its HTTP status."""
    return _TYPES.get(status, "server_error")


class ApiError(Exception):
    """An error answer to a client: an HTTP status and a body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = RETRY_AFTER_S if retry_after_s is None else retry_after_s
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": shortened(str(self)),
                "type": error_type(self.status),
                "param": self.param,
                "code": self.code if self.code is not None else _CODES.get(self.status),
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        if self.status in (429, 503):
            return {"retry-after": str(self.retry_after_s)}
        if self.status == 501:
            return {"x-should-retry": "false"}  # no engine will be able to
        return {}


def api_error(error: BaseException) -> ApiError:
    """Any error as the answer to the client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HttpError):
        return ApiError(error.status, str(error))
    code, text = status_of(error)
    status = HTTP_STATUSES.get(code, 500)
    param = error.field if isinstance(error, InvalidRequestError) else None
    if param == PROMPT_LIMIT:
        return ApiError(status, text, code=TOO_LONG)
    after = retry_after_s(error)
    return ApiError(status, text or code.name.lower(), param=param, retry_after_s=after)


def noted_error(record: RequestRecord, error: BaseException) -> ApiError:
    """The same of an answer whose status was sent already: the access log has this one."""
    failure = api_error(error)
    record.failure, record.error = failure.status, str(failure)
    return failure


_WORDS = {
    "guide": ("guided", "grammar", "structured", "json schema", "regex"),
    "bias": ("bias",),
    "bad words": ("bad words", "bad_words"),
    "prompt logprobs": ("logprobs of the prompt", "prompt_logprobs", "prompt logprobs"),
}
"""What engines call what some of them cannot do."""


def engine_refusal(error: Exception, asked: Mapping[str, str]) -> Exception:
    """An engine's refusal as a refusal of the field that asked for it; else `error`. `asked`:
    fields by what they ask for, as in _WORDS."""
    found = api_error(error)
    words = str(found).lower()
    if found.status in (400, 501):
        for what, field in asked.items():
            if any(map(words.__contains__, _WORDS[what])):
                return ApiError(400, f"{field}: {found}", param=field)
    return error


BAD_BODY = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a body raises that is no JSON, no UTF-8, nested too deep, or not of its form."""

_FORESEEN = (ApiError, HttpError, RouterError, EngineCallError, *BAD_BODY)


def bad_body(error: BaseException) -> ApiError:
    """One of BAD_BODY as the answer to the client."""
    if isinstance(error, RecursionError):
        return ApiError(400, "the body is nested too deep")
    text = str(error)
    found, missing = _PATH.search(text), _MISSING.match(text)
    where = found[1] if found else ""
    param = ".".join(each for each in (where, missing and missing[1]) if each) or None
    if found is None:
        return ApiError(400, f"the body is not what it must be: {text}", param=param)
    return ApiError(400, f"{where}: {text[: found.start()]}", param=param)


def error_answer(
    error: BaseException, body: Callable[[ApiError], Any] = attrgetter("body")
) -> ErrorAnswer:
    """Any error as an answer in OpenAI's shape, or in that of `body`."""
    found = bad_body(error) if isinstance(error, BAD_BODY) else api_error(error)
    more = error.headers if isinstance(error, HttpError) else {}
    headers = {**found.headers, **more}
    foreseen = isinstance(error, _FORESEEN)
    return ErrorAnswer(found.status, msgspec.json.encode(body(found)), headers, foreseen)


def unknown_model(model: str, known: list[str]) -> ApiError:
    """404, with what there is."""
    names = ", ".join(known) or "none"
    text = f"The model `{model[:200]}` does not exist; there is: {names}"
    return ApiError(404, text, param="model", code="model_not_found")


def prompt_too_long(limit: int, prompt: int, field: str) -> ApiError:
    """The first words are those that clients look for to cut their prompt."""
    text = (
        f"This model's maximum context length is {limit} tokens. However, your prompt has {prompt} "
        "tokens. Please reduce the length of the prompt."
    )
    return ApiError(400, text, param=field, code=TOO_LONG)


def answer_too_long(limit: int, prompt: int, output: int, field: str) -> ApiError:
    """Of an answer that the prompt leaves no room for. `field` asks for it."""
    text = (
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{prompt + output} tokens ({prompt} in the prompt, {output} in the completion): {field} "
        f"is more than the {limit - prompt} that are left."
    )
    return ApiError(400, text, param=field, code=TOO_LONG)
