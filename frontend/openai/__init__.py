"""OpenAI's API: requests, answers and errors in its shapes."""

from .answers import DONE, KEEP_ALIVE, Answer, Delta, FunctionCall, TokenLogprob, Usage, sse
from .errors import (
    BAD_BODY,
    ApiError,
    api_error,
    bad_body,
    error_answer,
    too_long,
    unknown_model,
)
from .nvext import EXTRA_FIELDS, Extensions
from .requests import ChatRequest, CompletionRequest, Sampling, read_request
from .tools import ToolChoice, tool_choice_of

__all__ = [
    "Answer",
    "ApiError",
    "BAD_BODY",
    "ChatRequest",
    "CompletionRequest",
    "DONE",
    "Delta",
    "EXTRA_FIELDS",
    "FunctionCall",
    "KEEP_ALIVE",
    "Extensions",
    "Sampling",
    "TokenLogprob",
    "ToolChoice",
    "Usage",
    "api_error",
    "bad_body",
    "error_answer",
    "read_request",
    "sse",
    "tool_choice_of",
    "too_long",
    "unknown_model",
]
