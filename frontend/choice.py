"""One answer to one prompt, and what an engine is asked for it."""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec

from ..router.policy import Decision
from ..server.dispatch import GenerateFacts
from ..workers.dialects import encode_generate
from ..workers.trtllm_proto import pb
from .openai import Sampling, Usage
from .parsers import ChatOutput
from .prompts import HashedPrompt

PASSED_ON = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""Settings of a request that an engine is told as they are."""
_passed_on = attrgetter(*PASSED_ON)
MOST_KEPT = 256
"""Sets of common settings whose serialized form is kept: clients ask for few."""


@dataclass
class Choice:
    """One answer to one prompt."""

    index: int
    prompt: HashedPrompt
    max_tokens: int
    seed: int | None = None
    prefix: str = ""
    """shown before the answer: the prompt, where it is to be echoed"""
    usage: Usage = field(default_factory=Usage)
    decision: Decision | None = None
    prefill: Decision | None = None
    """where its prompt was computed, if not where it was generated"""
    adapter: int | None = None
    """the LoRA adapter that computes it, as engines number it"""
    first_at: float | None = None
    """when its first text came, by the monotonic clock"""
    output: ChatOutput | None = None
    """finds reasoning and calls of tools in it"""
    schema: dict[str, Any] | None = None
    """JSON schema that the answer is held to, if not by the request's response_format"""


def engine_request(
    request: Sampling, choice: Choice, request_id: str, salt: int | None = None
) -> tuple[bytes, GenerateFacts]:
    """The trtllm.GenerateRequest of one choice, serialized, and what routing needs to know of it.

    `salt` is its cache namespace.
    """
    key = None
    if salt is None and choice.seed is None and choice.schema is None:
        key = _common_settings(request, choice.adapter)
    settings = None if key is None else _kept.get(key)
    if settings is None:
        settings = _settings(request, choice, salt)
        if key is not None:
            if len(_kept) >= MOST_KEPT:
                _kept.clear()
            _kept[key] = settings
    tokens, prompt = choice.prompt
    longest = choice.max_tokens
    body, largest = encode_generate(request_id, longest, settings, tokens)
    return body, GenerateFacts(request_id, prompt, largest, longest, 1, request.wants_stream)


_kept: dict[tuple[Any, ...], bytes] = {}


def kept_settings() -> int:
    """How many sets of settings are kept."""
    return len(_kept)


def _common_settings(request: Sampling, adapter: int | None) -> tuple[Any, ...] | None:
    """All that `_settings` writes of a request that asks for nothing unusual; None: it does."""
    if (
        request.stop is not None
        or request.stop_token_ids
        or request.response_format is not None
        or request.nvext is not None
        or request.logprobs_wanted is not None
    ):
        return None
    return (
        request.stream,
        request.ignore_eos,
        request.include_stop_str_in_output,
        request.min_tokens,
        request.top_k,
        adapter,
        *_passed_on(request),
    )


def _settings(request: Sampling, choice: Choice, salt: int | None) -> bytes:
    """What of it is neither the prompt, nor another value in each request."""
    message = pb.GenerateRequest(
        streaming=request.wants_stream,
        stop=request.stop_strings,
        stop_token_ids=request.stop_ids,
        ignore_eos=request.ignore_eos,
        include_stop_token_in_output=request.include_stop_str_in_output,
    )
    if choice.adapter is not None:
        message.lora_config.task_id = choice.adapter
    sampling = message.sampling_config
    sampling.beam_width = sampling.num_return_sequences = 1
    sampling.min_tokens = request.min_tokens
    for name in PASSED_ON:
        value = getattr(request, name)
        if value is not None:
            setattr(sampling, name, value)
    if request.top_k is not None and request.top_k > 0:  # both 0 and -1 mean all
        sampling.top_k = request.top_k
    if request.nvext is not None and request.nvext.greed_sampling:
        sampling.top_k = 1
    if salt is not None:
        message.cache_salt_id = salt
    if choice.seed is not None:
        sampling.seed = choice.seed
    wanted = request.logprobs_wanted
    if wanted is not None:
        message.output_config.logprobs = max(1, wanted)
    schema, form = choice.schema, request.response_format
    if schema is None and form is not None and form.type != "text":
        schema = {"type": "object"} if form.json_schema is None else form.json_schema.schema
    if schema is not None:
        message.guided_decoding.guide_type = pb.GuidedDecodingParams.GUIDE_TYPE_JSON_SCHEMA
        message.guided_decoding.guide = msgspec.json.encode(schema).decode()
    body: bytes = message.SerializeToString()
    return body
