"""OpenAI's API: requests, answers and errors in its shapes."""

from .answers import (
    LAST_CHUNK,
    Answer,
    Delta,
    FunctionCall,
    TokenLogprob,
    Usage,
    chat_events,
    chat_events_middle,
)
from .errors import (
    BAD_BODY,
    ApiError,
    answer_too_long,
    api_error,
    bad_body,
    engine_refusal,
    error_answer,
    noted_error,
    prompt_too_long,
    unknown_model,
)
from .guides import Guide, JsonSchema, ResponseFormat
from .requests import (
    LONG_BODY,
    MOST_MESSAGES,
    ChatApart,
    ChatRequest,
    CompletionRequest,
    Sampling,
    StreamOptions,
    check_messages,
    first_beyond,
    read_request,
)
from .tools import ToolChoice
from .translation import (
    ChatFields,
    Turns,
    as_type,
    errors_named,
    read_entry,
    read_json,
    refused_field,
    wrong_field,
)
