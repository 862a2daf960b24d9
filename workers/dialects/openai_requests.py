"""Requests of trtllm.TrtllmService as those of engines that speak OpenAI's HTTP. Pure.

Engines whose completions take token ids and can tell those of the answer (vLLM, TensorRT-LLM), and
those of which a route of their own does: llama.cpp's /completion, SGLang's /generate.
"""

import enum
from collections.abc import Callable
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from ...base.errors import UNREADABLE, InvalidRequestError
from ..trtllm_proto import guide_name, pb
from .handoff import CONTEXT_ONLY, leg_fields
from .logit_bias import bias_of
from .trtllm_answer import MAX_TOKENS, check_request, refuse


class EngineKind(enum.Enum):
    """Which words an engine has beside OpenAI's; the value is what errors call it."""

    COMPLETIONS = "an engine that speaks OpenAI's HTTP"
    TRTLLM = "TensorRT-LLM's HTTP server"
    SGLANG = "SGLang"
    LLAMA = "llama.cpp"

    @property
    def path(self) -> str:
        """Where it is asked for a generation."""
        return _PATHS.get(self, "/v1/completions")


_PATHS = {EngineKind.LLAMA: "/completion", EngineKind.SGLANG: "/generate"}


_LEG_FIELDS = {
    EngineKind.COMPLETIONS: ("kv_transfer_params",),
    EngineKind.TRTLLM: ("disaggregated_params",),
    EngineKind.SGLANG: ("bootstrap_host", "bootstrap_port", "bootstrap_room"),
}
"""What a leg of a request has beside what a whole one has."""
_GUIDES = pb.GuidedDecodingParams
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
    "repetition_penalty",
)  # fmt: skip
_LLAMA_NAMES = {"repetition_penalty": "repeat_penalty"}
_LLAMA_FIELDS = (
    "tokens", "content", "stop", "stop_type", "stopping_word", "tokens_predicted",
    "timings/cache_n", "completion_probabilities",
)  # fmt: skip
"""What of llama.cpp's last message is wanted: the rest repeats the prompt and all settings."""


def request_of(request: bytes, kind: EngineKind, model: str) -> tuple[Any, dict[str, Any]]:
    """(GenerateRequest, the JSON to post for it). InvalidRequestError, naming it, for what an
    engine of this kind has no word for."""
    try:
        message = pb.GenerateRequest.FromString(request)
    except DecodeError:
        raise InvalidRequestError("the request is no trtllm.GenerateRequest") from None
    # llama.cpp takes no prompt that another engine has computed.
    check_request(message, kind.value, disaggregated=kind is not EngineKind.LLAMA)
    if message.disaggregated_params.request_type == CONTEXT_ONLY:
        message.streaming = False  # what is handed over comes with a whole answer alone
    sampling, output = message.sampling_config, message.output_config
    refuse(
        kind.value,
        {
            "a LoRA adapter by its number": message.HasField("lora_config"),
            "no_repeat_ngram_size": bool(sampling.no_repeat_ngram_size),
            "logits": output.return_context_logits or output.return_generation_logits,
        },
    )
    body: dict[str, Any] = {
        "prompt": list(message.tokenized.input_token_ids),
        "stream": message.streaming,
    }
    names = _LLAMA_NAMES if kind is EngineKind.LLAMA else {}
    for name in _SAMPLING:
        if sampling.HasField(name):
            body[names.get(name, name)] = getattr(sampling, name)
    if message.stop:
        body["stop"] = list(message.stop)
    if message.ignore_eos:
        body["ignore_eos"] = True
    bias = bias_of(request) if message.embedding_bias else {}
    if bias:
        named = {str(token): value for token, value in bias.items()}
        body["logit_bias"] = list(bias.items()) if kind is EngineKind.LLAMA else named
    if kind is EngineKind.LLAMA:
        _add_llama(body, message)
        return message, body
    if kind is EngineKind.SGLANG:
        body = _sglang(body, message)
    else:
        _add_completions(body, message, model, kind)
    return message, body | leg_fields(message, _LEG_FIELDS[kind], kind.value)


def _add_completions(body: dict[str, Any], message: Any, model: str, kind: EngineKind) -> None:
    if model:
        body["model"] = model
    body["max_tokens"] = min(message.max_tokens, MAX_TOKENS)
    if kind is EngineKind.TRTLLM:  # it refuses fields that it does not know
        body["detokenize"] = False  # so it tells the ids
        refuse(
            kind.value,
            {
                # It names tokens by their text alone.
                "logprobs": message.output_config.logprobs > 0,
                "logprobs of the prompt": message.output_config.prompt_logprobs > 0,
                "guided decoding": message.HasField("guided_decoding"),
                "a cache salt": message.HasField("cache_salt_id"),
            },
        )
    else:
        body["return_token_ids"] = True
    if message.streaming:
        body["stream_options"] = {"include_usage": True}
    if message.sampling_config.min_tokens:
        body["min_tokens"] = message.sampling_config.min_tokens
    if message.stop_token_ids:
        body["stop_token_ids"] = list(message.stop_token_ids)
    if message.include_stop_token_in_output:
        body["include_stop_str_in_output"] = True
    if message.HasField("cache_salt_id"):
        body["cache_salt"] = str(message.cache_salt_id)
    if message.output_config.logprobs > 0:
        body |= {"logprobs": message.output_config.logprobs, "return_tokens_as_token_ids": True}
    if message.output_config.prompt_logprobs > 0:
        body["prompt_logprobs"] = message.output_config.prompt_logprobs
    guide = _guide_of(message, EngineKind.COMPLETIONS, {
        _GUIDES.GUIDE_TYPE_JSON: lambda guide: {"json_object": True},
        _GUIDES.GUIDE_TYPE_JSON_SCHEMA: lambda guide: {"json": _schema(guide)},
        _GUIDES.GUIDE_TYPE_REGEX: lambda guide: {"regex": guide},
        _GUIDES.GUIDE_TYPE_EBNF_GRAMMAR: lambda guide: {"grammar": guide},
    })  # fmt: skip
    if guide:
        body["structured_outputs"] = guide


def _sglang(common: dict[str, Any], message: Any) -> dict[str, Any]:
    """The body of SGLang's own /generate. Source: its documentation of sampling parameters."""
    sampling = {key: value for key, value in common.items() if key not in ("prompt", "stream")}
    if "seed" in sampling:
        sampling["sampling_seed"] = sampling.pop("seed")
    refuse(
        EngineKind.SGLANG.value,
        {
            "logprobs of the prompt": message.output_config.prompt_logprobs > 0,
            "a cache salt": message.HasField("cache_salt_id"),
        },
    )
    sampling["max_new_tokens"] = min(message.max_tokens, MAX_TOKENS)
    if message.sampling_config.min_tokens:
        sampling["min_new_tokens"] = message.sampling_config.min_tokens
    if message.stop_token_ids:
        sampling["stop_token_ids"] = list(message.stop_token_ids)
    if message.include_stop_token_in_output:
        sampling["no_stop_trim"] = True
    sampling |= _guide_of(message, EngineKind.SGLANG, {
        _GUIDES.GUIDE_TYPE_JSON: lambda guide: {"json_schema": '{"type": "object"}'},
        _GUIDES.GUIDE_TYPE_JSON_SCHEMA: lambda guide: {"json_schema": _schema(guide) and guide},
        _GUIDES.GUIDE_TYPE_REGEX: lambda guide: {"regex": guide},
        _GUIDES.GUIDE_TYPE_EBNF_GRAMMAR: lambda guide: {"ebnf": guide},
    })  # fmt: skip
    body = {
        "input_ids": common["prompt"],
        "sampling_params": sampling,
        "stream": common["stream"],
    }
    if message.request_id:
        body["rid"] = message.request_id
    if message.output_config.logprobs > 0:
        body |= {"return_logprob": True, "top_logprobs_num": message.output_config.logprobs}
    return body


def _add_llama(body: dict[str, Any], message: Any) -> None:
    refuse(
        EngineKind.LLAMA.value,
        {
            "logprobs of the prompt": message.output_config.prompt_logprobs > 0,
            "min_tokens": message.sampling_config.min_tokens > 0,
            "stop_token_ids": bool(message.stop_token_ids),
            "a stop string in the output": message.include_stop_token_in_output and message.stop,
            # Its cache knows token ids alone.
            "a cache salt": message.HasField("cache_salt_id"),
        },
    )
    body |= {
        "n_predict": min(message.max_tokens, MAX_TOKENS),
        "return_tokens": True,
        "cache_prompt": True,
        "timings_per_token": True,
        "response_fields": _LLAMA_FIELDS,
    }
    if message.output_config.logprobs > 0:
        body["n_probs"] = message.output_config.logprobs
    body |= _guide_of(message, EngineKind.LLAMA, {
        _GUIDES.GUIDE_TYPE_JSON: lambda guide: {"json_schema": {"type": "object"}},
        _GUIDES.GUIDE_TYPE_JSON_SCHEMA: lambda guide: {"json_schema": _schema(guide)},
        _GUIDES.GUIDE_TYPE_EBNF_GRAMMAR: lambda guide: {"grammar": guide},
    })  # fmt: skip


def _guide_of(
    message: Any, kind: EngineKind, words: dict[int, Callable[[str], dict[str, Any]]]
) -> dict[str, Any]:
    """What holds the output to a grammar, in the words for its type; empty if nothing does."""
    if not message.HasField("guided_decoding"):
        return {}
    guiding = message.guided_decoding
    if guiding.guide_type not in words:
        name = guide_name(guiding.guide_type)
        raise InvalidRequestError(f"guided decoding by {name} is not supported by {kind.value}")
    return words[guiding.guide_type](guiding.guide)


def _schema(guide: str) -> Any:
    try:
        return msgspec.json.decode(guide)
    except UNREADABLE as error:
        raise InvalidRequestError(f"the JSON schema of guided decoding: {error}") from None
