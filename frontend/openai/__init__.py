"""OpenAI's API: requests, answers and errors in its shapes."""

from .answers import Answer, Delta, FunctionCall, TokenLogprob, Usage
from .errors import (
    BAD_BODY,
    ApiError,
    answer_too_long,
    api_error,
    bad_body,
    error_answer,
    prompt_too_long,
    refused_field,
    unknown_model,
)
from .guides import Guide
from .requests import (
    LONG_BODY,
    ChatRequest,
    CompletionRequest,
    Sampling,
    check_messages,
    first_beyond,
    read_request,
)
from .tools import ToolChoice
