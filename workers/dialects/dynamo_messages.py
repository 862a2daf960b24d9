"""Requests and answers of Dynamo's `generate` endpoint as those of trtllm.TrtllmService. Pure.

Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/request_plane`). A worker of it accepts a body
that it cannot read and never answers: so nothing is sent that is not of the type it expects.
"""

from typing import Annotated, Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from ...base.errors import InvalidRequestError, WorkerError
from ...runtime.request_planes import part_decoders
from ..trtllm_proto import pb
from ._token_ids import split_tokens
from .handoff import leg_fields, with_handoff
from .trtllm_answer import MAX_TOKENS, TokenLogprob, TrtllmAnswer, check_request, refuse

_ENGINE = "a worker of Dynamo's"

_FINISH_REASONS = {"eos": "stop"}
"""Dynamo's words that differ from those of TensorRT-LLM."""
_SAMPLING = (
    "top_k", "top_p", "min_p", "seed", "temperature", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "length_penalty",
)  # fmt: skip


def _bits(*names: str) -> int:
    """Of fields of a GenerateRequest, as split_tokens tells which are there."""
    fields = pb.GenerateRequest.DESCRIPTOR.fields_by_name
    return sum(1 << fields[name].number for name in names)


# Most requests have few of these: what is not there need not be asked for one by one.
_TO_CHECK = _bits(
    "sampling_config", "multimodal_input", "prompt_tuning_config", "disaggregated_params",
    "embedding_bias", "bad", "bad_token_ids", "guided_decoding",
)  # fmt: skip
_DISAGGREGATED = _bits("disaggregated_params")
_LEG_FIELDS = ("prefill_result", "bootstrap_info", "handoff_id")
_TO_TRANSLATE = _bits(
    "sampling_config", "output_config", "stop", "stop_token_ids", "cache_salt_id", "lora_config"
)


class Asked(NamedTuple):
    """A request that was read. `message` is the GenerateRequest without its tokens."""

    message: Any
    prompt_tokens: int
    body: dict[str, Any]
    """what to send; its tokens are encoded already where that can be"""


def read_request(request: bytes, dp_rank: int | None, codec: str = "msgpack") -> Asked:
    """A serialized GenerateRequest in Dynamo's words, to be sent by `codec`.

    InvalidRequestError if it is none, or Dynamo has no word for what it asks.
    """
    try:
        rest, tokens, prompt_tokens, present = split_tokens(request)
        message = pb.GenerateRequest.FromString(rest)
    except (DecodeError, ValueError):
        raise InvalidRequestError("the request is no trtllm.GenerateRequest") from None
    if present & _TO_CHECK or not message.max_tokens:
        check_request(message, _ENGINE, disaggregated=True)
        refuse(
            _ENGINE,
            {
                "guided decoding": message.HasField("guided_decoding"),
                "an embedding bias": bool(message.embedding_bias),
            },
        )
    stop: dict[str, Any] = {
        "max_tokens": min(message.max_tokens, MAX_TOKENS),
        "ignore_eos": message.ignore_eos,
    }
    options: dict[str, Any] = {}
    output: dict[str, Any] = {}
    routing: dict[str, Any] = {}
    if dp_rank is not None:
        routing["dp_rank"] = dp_rank
    if present & _TO_TRANSLATE:
        if message.stop:
            stop["stop"] = list(message.stop)
        if message.stop_token_ids:
            visible = message.include_stop_token_in_output
            ids = "stop_token_ids_visible" if visible else "stop_token_ids"
            stop[ids] = list(message.stop_token_ids)
        sampling = message.sampling_config
        if sampling.HasField("min_tokens"):
            stop["min_tokens"] = sampling.min_tokens
        options = {name: getattr(sampling, name) for name in _SAMPLING if sampling.HasField(name)}
        if message.HasField("cache_salt_id"):
            routing["cache_salt"] = str(message.cache_salt_id)
        if message.HasField("lora_config"):
            routing["lora_name"] = str(message.lora_config.task_id)
        refuse(_ENGINE, {"logprobs of the prompt": message.output_config.prompt_logprobs > 0})
        if message.output_config.HasField("logprobs"):
            output["logprobs"] = message.output_config.logprobs
    token_ids = msgspec.Raw(tokens) if codec == "msgpack" else msgspec.msgpack.decode(tokens)
    body: dict[str, Any] = {
        "token_ids": token_ids,
        "stop_conditions": stop,
        "sampling_options": options,
        "output_options": output,
        "eos_token_ids": [],
        "annotations": [],
        "routing": routing,
    }
    if present & _DISAGGREGATED:
        body |= leg_fields(message, _LEG_FIELDS, _ENGINE)
    return Asked(message, prompt_tokens, body)


def canary_body() -> dict[str, Any]:
    """The smallest request, which shows whether a worker answers."""
    return {
        "token_ids": [1],
        "stop_conditions": {"max_tokens": 1, "ignore_eos": True},
        "sampling_options": {},
        "output_options": {},
        "annotations": [],
        "routing": {},
    }


class _Details(msgspec.Struct):
    cached_tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class TokenPart(msgspec.Struct):
    """A part of an answer."""

    token_ids: list[int]
    finish_reason: str | dict[str, Any] | None = None
    """why the answer ends; a map with `error` if it failed"""
    stop_reason: Any = None
    """the stop string or token id that ended it"""
    log_probs: list[Any] | None = None
    completion_usage: _Usage | None = None
    disaggregated_params: Any = None
    """of a prefill worker: what a decode worker needs to go on"""


class PlainPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part in its envelope that says nothing beside the data, as nearly all do."""

    data: TokenPart
    id: Any = None
    event: None = None
    comment: Any = None
    error: None = None


PART_DECODERS = part_decoders(PlainPart)


class AnswerWriter:
    """Turns the parts of one answer into serialized GenerateResponses, in order."""

    def __init__(self, request: Any, prompt_tokens: int) -> None:
        self._answer = TrtllmAnswer(request, prompt_tokens)
        self._finish_reason = ""
        self._matched: Any = None
        self._handoff: Any = None

    def on_part(self, part: Any) -> bytes | None:
        """The message that a part makes; None if it has nothing for a client yet. It is a TokenPart
        or what one is decoded from.

        WorkerError if it says that the request failed, or is no part of such an answer.
        """
        answer = self._answer
        try:
            if type(part) is not TokenPart:
                part = msgspec.convert(part, TokenPart)
            usage = part.completion_usage
            if usage is not None and (details := usage.prompt_tokens_details) is not None:
                answer.cached_tokens = details.cached_tokens or answer.cached_tokens
            reason = part.finish_reason
            if reason:
                if isinstance(reason, dict):
                    raise WorkerError(str(reason.get("error", reason)))
                self._finish_reason = _FINISH_REASONS.get(reason, reason)
                self._matched = part.stop_reason
            if part.disaggregated_params is not None:
                self._handoff = part.disaggregated_params
            tokens = part.token_ids
            if not part.log_probs:
                return answer.add(tokens)
            logprobs = zip(tokens, part.log_probs, strict=False)
            return answer.add(tokens, [TokenLogprob(*each) for each in logprobs])
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            raise WorkerError(f"its answer cannot be read: {error!r}") from None

    def complete(self) -> bytes:
        """The last message. WorkerError if no part said why the answer ended, or one cannot be
        written."""
        if not self._finish_reason:
            raise WorkerError("its answer ended without a reason")
        try:
            message = self._answer.complete(self._finish_reason, self._matched)
            if self._handoff is None:
                return message
            given = {"disaggregated_params": self._handoff, "prompt_tokens_details": None}
            return with_handoff(message, msgspec.json.encode({"prefill_result": given}))
        except (TypeError, ValueError) as error:
            raise WorkerError(f"its answer cannot be read: {error!r}") from None
