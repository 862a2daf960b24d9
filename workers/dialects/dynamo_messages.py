"""Requests and answers of Dynamo's `generate` endpoint as those of trtllm.TrtllmService. Pure.

Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/request_plane`). A worker of it accepts a body
that it cannot read and never answers: so nothing is sent that is not of the type it expects.
"""

from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from ...runtime.errors import InvalidRequestError, WorkerError
from ..trtllm_proto import pb
from ._token_ids import split_tokens

_FINISH_REASONS = {"eos": "stop"}
"""Dynamo's words that differ from those of TensorRT-LLM."""
_SAMPLING = (
    "top_k", "top_p", "min_p", "seed", "temperature", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "length_penalty",
)  # fmt: skip
_MAX_TOKENS = 2**31 - 1


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
        rest, tokens, prompt_tokens = split_tokens(request)
        message = pb.GenerateRequest.FromString(rest)
    except (DecodeError, ValueError):
        raise InvalidRequestError("the request is no trtllm.GenerateRequest") from None
    _check(message)
    sampling = message.sampling_config
    stop: dict[str, Any] = {
        "max_tokens": min(message.max_tokens, _MAX_TOKENS),
        "ignore_eos": message.ignore_eos,
    }
    if message.stop:
        stop["stop"] = list(message.stop)
    if message.stop_token_ids:
        ids = "stop_token_ids_visible" if message.include_stop_token_in_output else "stop_token_ids"
        stop[ids] = list(message.stop_token_ids)
    if sampling.HasField("min_tokens"):
        stop["min_tokens"] = sampling.min_tokens
    routing: dict[str, Any] = {}
    if dp_rank is not None:
        routing["dp_rank"] = dp_rank
    if message.HasField("cache_salt_id"):
        routing["cache_salt"] = str(message.cache_salt_id)
    if message.HasField("lora_config"):
        routing["lora_name"] = str(message.lora_config.task_id)
    output = {}
    if message.output_config.HasField("logprobs"):
        output["logprobs"] = message.output_config.logprobs
    token_ids = msgspec.Raw(tokens) if codec == "msgpack" else msgspec.msgpack.decode(tokens)
    body: dict[str, Any] = {
        "token_ids": token_ids,
        "stop_conditions": stop,
        "sampling_options": {
            name: getattr(sampling, name) for name in _SAMPLING if sampling.HasField(name)
        },
        "output_options": output,
        "eos_token_ids": [],
        "annotations": [],
        "routing": routing,
    }
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


def _check(message: Any) -> None:
    sampling = message.sampling_config
    unsupported = {
        "num_return_sequences above 1": sampling.num_return_sequences > 1,
        "beam search": sampling.beam_width > 1,
        "multimodal input": bool(message.multimodal_input.image_data),
        "prompt tuning": bool(message.prompt_tuning_config.embedding_table),
        "disaggregated serving": bool(message.disaggregated_params.request_type),
        "guided decoding": message.HasField("guided_decoding"),
        "an embedding bias": bool(message.embedding_bias),
        "bad words": bool(message.bad or message.bad_token_ids),
    }
    for what, asked in unsupported.items():
        if asked:
            raise InvalidRequestError(f"{what} is not supported by a worker of Dynamo's")
    if not message.max_tokens:
        raise InvalidRequestError("max_tokens is 0", field="max_tokens")


class AnswerWriter:
    """Turns the parts of one answer into serialized GenerateResponses, in order."""

    def __init__(self, request: Any, prompt_tokens: int) -> None:
        self._streaming: bool = request.streaming
        self._logprobs = request.output_config.logprobs > 0
        self._tokens: list[int] = []
        self._token_logprobs: list[float] = []
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = 0
        self._finish_reason = ""
        self._matched: Any = None
        self._chunk = pb.GenerateResponse(request_id=request.request_id)
        self._chunk.chunk.prompt_tokens = self._prompt_tokens
        self._request_id: str = request.request_id

    def on_part(self, part: Any) -> bytes | None:
        """The message that a part makes; None if it has nothing for a client yet.

        WorkerError if it says that the request failed, or is no part of such an answer.
        """
        try:
            tokens: list[int] = part["token_ids"]
            reason = part.get("finish_reason")
            usage = part.get("completion_usage")
            if usage:
                details = usage.get("prompt_tokens_details") or {}
                self._cached_tokens = details.get("cached_tokens") or self._cached_tokens
            if isinstance(reason, dict):
                raise WorkerError(str(reason.get("error", reason)))
            if reason:
                self._finish_reason = _FINISH_REASONS.get(reason, reason)
                self._matched = part.get("stop_reason")
            self._tokens += tokens
            logprobs = part.get("log_probs") or ()
            if not tokens or not self._streaming:
                if self._logprobs:
                    self._token_logprobs += logprobs
                return None
            chunk = self._chunk.chunk
            del chunk.token_ids[:]
            chunk.token_ids.extend(tokens)
            chunk.completion_tokens = len(self._tokens)
            chunk.cached_tokens = self._cached_tokens
            if self._logprobs:
                self._token_logprobs += logprobs
                del chunk.logprobs[:]
                for token, logprob in zip(tokens, logprobs, strict=False):
                    chunk.logprobs.add(token_id=token, logprob=logprob)
            data: bytes = self._chunk.SerializeToString()
            return data
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise WorkerError(f"its answer cannot be read: {error!r}") from None

    def complete(self) -> bytes:
        """The last message. WorkerError if no part said why the answer ended."""
        if not self._finish_reason:
            raise WorkerError("its answer ended without a reason")
        response = pb.GenerateResponse(request_id=self._request_id)
        complete = response.complete
        complete.output_token_ids.extend(self._tokens)
        complete.finish_reason = self._finish_reason
        complete.prompt_tokens = self._prompt_tokens
        complete.completion_tokens = len(self._tokens)
        complete.cached_tokens = self._cached_tokens
        if isinstance(self._matched, int) and 0 <= self._matched < 2**32:
            complete.matched_token_id = self._matched
        elif isinstance(self._matched, str):
            complete.matched_stop_str = self._matched
        for token, logprob in zip(self._tokens, self._token_logprobs, strict=False):
            complete.logprobs.add(token_id=token, logprob=logprob)
        data: bytes = response.SerializeToString()
        return data
