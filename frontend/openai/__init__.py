"""OpenAI's API: requests, answers and errors in its shapes."""

from .answers import DONE, KEEP_ALIVE, Answer, Delta, TokenLogprob, Usage, sse
from .errors import ApiError, api_error, bad_body, too_long, unknown_model
from .requests import ChatRequest, CompletionRequest, Sampling, read_request

__all__ = [
    "Answer",
    "ApiError",
    "ChatRequest",
    "CompletionRequest",
    "DONE",
    "Delta",
    "KEEP_ALIVE",
    "Sampling",
    "TokenLogprob",
    "Usage",
    "api_error",
    "bad_body",
    "read_request",
    "sse",
    "too_long",
    "unknown_model",
]
