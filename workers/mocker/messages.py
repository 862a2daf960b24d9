"""The mock engine's side of messages: requests in, answers out, and what prefill workers hand over.

No cache is moved between mock engines: a decode worker computes the prompt itself, so that the time
of its first token is not that of a real one. But it takes a handoff only from a prefill worker that
it could have the cache of.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ...runtime.errors import InvalidRequestError
from ..dialects import CONTEXT_ONLY, given_handoff
from ..trtllm_proto import common_pb, pb
from .config import MockerConfig
from .kv_events import BlocksStored, KvEvent
from .live import TokenStream
from .sampling import EngineRequest

_INT64 = 2**63
_TIERS = {
    "device": common_pb.KV_CACHE_TIER_DEVICE,
    "host_pinned": common_pb.KV_CACHE_TIER_HOST,
    "disk": common_pb.KV_CACHE_TIER_DISK,
}


class Handoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a prefill worker says of the prompt that it computed."""

    prefill_worker_id: int
    model: str
    block_size: int
    prompt_tokens: int


class DisaggregationRole(NamedTuple):
    """Of one engine."""

    mode: str
    worker_id: int
    model: str
    block_size: int

    @property
    def hands_over(self) -> bool:
        """Whether it computes prompts for others, and nothing else."""
        return self.mode == "prefill"

    def handoff(self, prompt_tokens: int) -> Handoff:
        return Handoff(self.worker_id, self.model, self.block_size, prompt_tokens)

    def check_request(self, message: Any) -> None:
        """InvalidRequestError for a GenerateRequest that is not for this kind of worker."""
        phase = message.disaggregated_params.request_type
        if self.mode == "agg" and phase:
            text = "disaggregated serving is not supported by this engine"
            raise InvalidRequestError(text, field="disaggregated_params")
        if self.hands_over != (phase == CONTEXT_ONLY):
            text = f"a request of phase {phase} at a worker for {self.mode}"
            raise InvalidRequestError(text, field="disaggregated_params")
        handoff = given_handoff(message)
        if handoff is not None:
            try:
                found = msgspec.json.decode(handoff)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise _no_handoff("no JSON") from None
            self.check_handoff(found, len(message.tokenized.input_token_ids))

    def check_handoff(self, params: object, prompt_tokens: int) -> None:
        """InvalidRequestError for what does not come from a partner of ours, for such a prompt."""
        try:
            found = msgspec.convert(params, Handoff)
        except msgspec.ValidationError as error:
            raise _no_handoff(str(error)) from None
        ours = self.handoff(prompt_tokens)
        for name in ("model", "block_size", "prompt_tokens"):
            theirs, wanted = getattr(found, name), getattr(ours, name)
            if theirs != wanted:
                raise _no_handoff(f"its {name} is {theirs}, not {wanted}")


def role_of(config: MockerConfig, worker_id: int) -> DisaggregationRole:
    engine = config.engine
    return DisaggregationRole(
        config.disaggregation_mode, worker_id, config.model_id, engine.block_size
    )


def engine_request(
    message: Any, request_id: str, returning_tokens: int | None = None
) -> EngineRequest:
    """The engine's request of a GenerateRequest: of its first answer, where it asks for several.

    Raises InvalidRequestError on what this engine cannot do and must not ignore, because the
    answer or the cache would not be what was asked for.
    """
    sampling = message.sampling_config
    if sampling.beam_width > 1:
        raise _unsupported("beam search", "beam_width")
    if message.multimodal_input.image_data:
        raise _unsupported("multimodal input", "multimodal_input")
    if message.prompt_tuning_config.embedding_table:
        raise _unsupported("prompt tuning", "prompt_tuning_config")
    if not message.HasField("tokenized"):
        raise InvalidRequestError("tokenized input is missing", field="tokenized")
    lora = message.HasField("lora_config")
    salted = message.HasField("cache_salt_id")
    return EngineRequest(
        request_id=request_id,
        token_ids=np.array(message.tokenized.input_token_ids, dtype=np.uint32),
        max_tokens=message.max_tokens,
        min_tokens=sampling.min_tokens,
        seed=sampling.seed,
        stop_token_ids=frozenset(message.stop_token_ids),
        bad_token_ids=frozenset(message.bad_token_ids),
        keep_stop_token=message.include_stop_token_in_output,
        lora_name=str(message.lora_config.task_id) if lora else None,
        cache_namespace=str(message.cache_salt_id) if salted else None,
        returning_tokens=returning_tokens,
    )


def engine_requests(
    message: Any, request_id: str, returning_tokens: int | None, *, most: int
) -> list[EngineRequest]:
    """A request of the engine for each answer that is asked for, by seeds that follow each other.

    Raises as `engine_request` does, and for more than `most` answers.
    """
    first = engine_request(message, request_id, returning_tokens)
    wanted = message.sampling_config.num_return_sequences
    if wanted > most:
        raise InvalidRequestError(
            f"{wanted} answers are more than the {most} requests that this engine runs at a time",
            field="num_return_sequences",
        )
    others = (
        replace(first, request_id=f"{request_id}\x1f{nth}", seed=(first.seed + nth) % 2**64)
        for nth in range(1, wanted)
    )
    return [first, *others]


class ResponseWriter:
    """Serialised answers for one sequence. Built once, because there is one for every token.

    `index`: which of its request's answers it is.
    """

    def __init__(self, stream: TokenStream, message: Any, vocab_size: int, index: int = 0) -> None:
        sequence = stream.sequence
        self._stream = stream
        self._logprobs = message.output_config.logprobs > 0
        # Each token is drawn evenly from those that are allowed.
        banned = len(sequence.request.bad_token_ids) + 1
        self._logprob = -math.log(max(1, vocab_size - banned))
        self._response = pb.GenerateResponse(request_id=message.request_id)
        self._chunk = self._response.chunk
        self._chunk.prompt_tokens = sequence.prompt_len
        self._chunk.sequence_index = self._index = index

    def chunk(self, position: int) -> bytes:
        """The message that brings token `position` of the output."""
        sequence, chunk = self._stream.sequence, self._chunk
        token = sequence.output[position]
        if position == 0:
            chunk.token_ids.append(token)
            chunk.cached_tokens = sequence.cached_tokens or 0
        chunk.token_ids[0] = token
        chunk.completion_tokens = position + 1
        if self._logprobs:
            del chunk.logprobs[:]
            chunk.logprobs.add(token_id=token, logprob=self._logprob)
        data: bytes = self._response.SerializeToString()
        return data

    def complete(self) -> bytes:
        """The last message: the whole output, and why it ended."""
        sequence, aborted = self._stream.sequence, self._stream.aborted
        tokens = sequence.output[: min(self._stream.ready, sequence.visible)]
        response = pb.GenerateResponse(request_id=self._response.request_id)
        complete = response.complete
        complete.output_token_ids.extend(tokens)
        complete.sequence_index = self._index
        complete.prompt_tokens = sequence.prompt_len
        complete.completion_tokens = len(tokens)
        complete.cached_tokens = sequence.cached_tokens or 0
        complete.finish_reason = "cancelled" if aborted else sequence.finish_reason
        if sequence.matched_stop is not None and not aborted:
            complete.matched_token_id = sequence.matched_stop
        if self._logprobs:
            for token in tokens:
                complete.logprobs.add(token_id=token, logprob=self._logprob)
        data: bytes = response.SerializeToString()
        return data


def add_kv_event(batch: Any, event: KvEvent, event_id: int) -> None:
    """Append one cache event to a KvEventBatch."""
    if isinstance(event, BlocksStored):
        add_stored(batch, event, event_id)
    else:
        removed = batch.events.add(event_id=event_id).removed
        removed.block_hashes.extend(map(_signed, event.block_hashes))
        removed.tier = _TIERS[event.tier]


def add_stored(batch: Any, event: BlocksStored, event_id: int) -> None:
    """Append one stored event for a chain of blocks."""
    stored = batch.events.add(event_id=event_id).stored
    first = event.blocks[0]
    if first.parent_hash is not None:
        stored.parent_block_hash = _signed(first.parent_hash)
    stored.tier = _TIERS[event.tier]
    if first.lora_name is not None:
        stored.lora_name = first.lora_name
    if first.cache_namespace is not None:
        stored.cache_salt = first.cache_namespace
    for block in event.blocks:
        tokens = np.frombuffer(block.token_ids, dtype="<u4")
        stored.blocks.add(
            block_hash=_signed(block.block_hash),
            token_ids=tokens.tolist(),
            block_size=len(tokens),
            cache_level=0,
        )


def _signed(block_hash: int) -> int:
    """The wire's int64: two's complement of our u64."""
    return block_hash - 2 * _INT64 if block_hash >= _INT64 else block_hash


def _unsupported(what: str, field: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what} is not supported by a mock engine", field=field)


def _no_handoff(why: str) -> InvalidRequestError:
    text = f"the prompt's handoff is none of a partner of this engine: {why}"
    return InvalidRequestError(text, field="disaggregated_params")
