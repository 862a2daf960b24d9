"""EngineRequest: one generation, as every engine that is served here is asked for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import InvalidRequestError
from ...workers.dialects import bias_of, given_handoff
from ...workers.retention import FIELD, Retention, Span, returning_spans
from ...workers.trtllm_proto import guide_name

_APART = (
    "num_return_sequences", "seed", "min_tokens",
    # Without beam search, which is refused, these say nothing.
    "beam_width", "beam_width_array", "beam_search_diversity_rate", "length_penalty",
    "early_stopping",
)  # fmt: skip
"""Parts of a SamplingConfig that an EngineRequest has fields for, or no use."""
_OUTPUTS = (
    "return_context_logits", "return_generation_logits", "return_encoder_output",
    "return_perf_metrics",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineRequest:
    """One generation."""

    request_id: str
    token_ids: npt.NDArray[np.uint32]
    max_tokens: int
    min_tokens: int = 0  # stop tokens before that many are not heeded
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    bad_token_ids: frozenset[int] = frozenset()
    keep_stop_token: bool = False  # the output ends with the stop token, if one ended it
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    answers: int = 1
    streaming: bool = True  # else all tokens of an answer may come in its last part
    logprobs: int | None = None  # how many of the likeliest tokens at each place
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """what is added to the logits of tokens, by id"""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """what else was asked for of a SamplingConfig, by the names of its fields"""
    guide: tuple[str, str] | None = None
    """what the output is held to: (JSON, JSON_SCHEMA, REGEX, EBNF_GRAMMAR or STRUCTURAL_TAG, it)"""
    lora_name: str | None = None
    cache_namespace: str | None = None
    dp_rank: int | None = None
    returning_tokens: int | None = None  # how many of its tokens a later request begins with
    retention: Retention | None = None  # or what is to be kept of it: this counts
    phase: int | None = None
    """of disaggregated serving, as in DisaggregatedParams, 0: of none; None: it does not say"""
    handoff: bytes | None = None
    """what the prompt's prefill worker handed over, JSON"""
    others: tuple[str, ...] = ()
    """what else was asked for that this has no words for"""

    def retention_spans(self, block_size: int) -> Sequence[Span] | None:
        """How its blocks are to be kept; None: no hint."""
        if self.retention is not None:
            return self.retention.spans(len(self.token_ids), block_size)
        if self.returning_tokens is not None:
            return returning_spans(self.returning_tokens, block_size)
        return None


def trtllm_request(
    message: Any, request_id: str, dp_rank: int | None, returning_tokens: int | None = None
) -> EngineRequest:
    """A GenerateRequest. InvalidRequestError on what no engine served here can do and must not
    ignore, because the answer or the cache would not be what was asked for."""
    sampling = message.sampling_config
    if sampling.beam_width > 1:
        raise unsupported("beam search", "beam_width")
    if message.multimodal_input.image_data:
        raise unsupported("multimodal input", "multimodal_input")
    if message.prompt_tuning_config.embedding_table:
        raise unsupported("prompt tuning", "prompt_tuning_config")
    if not message.HasField("tokenized"):
        raise InvalidRequestError("tokenized input is missing", field="tokenized")
    lora = message.HasField("lora_config")
    salted = message.HasField("cache_salt_id")
    output = message.output_config
    return EngineRequest(
        request_id=request_id,
        token_ids=np.array(message.tokenized.input_token_ids, dtype=np.uint32),
        max_tokens=message.max_tokens,
        min_tokens=sampling.min_tokens,
        seed=sampling.seed if sampling.HasField("seed") else None,
        stop_token_ids=frozenset(message.stop_token_ids),
        bad_token_ids=frozenset(message.bad_token_ids),
        keep_stop_token=message.include_stop_token_in_output,
        ignore_eos=message.ignore_eos,
        stop=tuple(message.stop),
        bad=tuple(message.bad),
        answers=max(1, sampling.num_return_sequences),
        streaming=message.streaming,
        logprobs=output.logprobs if output.logprobs > 0 else None,
        logit_bias=bias_of(message.SerializeToString()) if message.embedding_bias else {},
        prompt_logprobs=output.prompt_logprobs if output.prompt_logprobs > 0 else None,
        sampling={
            field.name: value for field, value in sampling.ListFields() if field.name not in _APART
        },
        guide=_guide_of(message),
        lora_name=str(message.lora_config.task_id) if lora else None,
        cache_namespace=str(message.cache_salt_id) if salted else None,
        dp_rank=dp_rank,
        returning_tokens=returning_tokens,
        retention=_retention_of(message),
        phase=message.disaggregated_params.request_type,
        handoff=given_handoff(message),
        others=_others(message),
    )


def unsupported(what: str, field: str | None = None) -> InvalidRequestError:
    return InvalidRequestError(f"{what} is not supported by this engine", field=field)


def _retention_of(message: Any) -> Retention | None:
    """A wish: engines that cannot keep blocks by it need not refuse the request."""
    if not message.HasField(FIELD):
        return None
    return Retention.read(message.kv_cache_retention.config_json)


def _guide_of(message: Any) -> tuple[str, str] | None:
    if not message.HasField("guided_decoding"):
        return None
    guiding = message.guided_decoding
    name = guide_name(guiding.guide_type)
    return name.removeprefix("GUIDE_TYPE_"), guiding.guide


def _others(message: Any) -> tuple[str, ...]:
    found = [name for name in _OUTPUTS if getattr(message.output_config, name)]
    if message.HasField("lookahead_config"):
        found.append("lookahead_config")
    return tuple(found)
