"""Requests of trtllm.TrtllmService checked, and answers in its words, for other dialects. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...base.errors import InvalidRequestError, WorkerError
from ..trtllm_proto import pb
from ._answer_messages import AnswerMessages

MAX_TOKENS = 2**31 - 1


class TokenLogprob(NamedTuple):
    """A token of an answer with its logprob, and (token id, logprob) of the likeliest ones."""

    token_id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


def check_request(message: Any, engine: str, *, disaggregated: bool = False) -> None:
    """InvalidRequestError for a GenerateRequest that asks for what engines of no dialect but trtllm
    can be asked for. `disaggregated`: this one knows of phases of a request."""
    sampling = message.sampling_config
    refuse(
        engine,
        {
            "num_return_sequences above 1": sampling.num_return_sequences > 1,
            "beam search": sampling.beam_width > 1,
            "multimodal input": _says(message, "multimodal_input", "image_data"),
            "prompt tuning": _says(message, "prompt_tuning_config", "embedding_table"),
            "disaggregated serving": not disaggregated
            and _says(message, "disaggregated_params", "request_type"),
            "bad words": bool(message.bad or message.bad_token_ids),
        },
    )
    if not message.max_tokens:
        raise InvalidRequestError("max_tokens is 0", field="max_tokens")


def _says(message: Any, part: str, field: str) -> bool:
    """Whether a field is set of a part that most messages do not have."""
    return message.HasField(part) and bool(getattr(getattr(message, part), field))


def refuse(engine: str, asked: Mapping[str, bool]) -> None:
    """InvalidRequestError, naming it, for the first thing that is asked for."""
    for what, wanted in asked.items():
        if wanted:
            raise InvalidRequestError(f"{what} is not supported by {engine}")


class TrtllmAnswer:
    """The GenerateResponses of one answer, in order: chunks if it is streamed, then the whole."""

    def __init__(self, request: Any, prompt_tokens: int, index: int = 0) -> None:
        """`index`: which of its request's answers it is."""
        self.cached_tokens = 0
        """of the prompt, found cached; 0 where it is not known (yet)"""
        self._streaming: bool = request.streaming
        self._wants_logprobs = request.output_config.logprobs > 0
        self._logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: Sequence[TokenLogprob] = ()
        """of each token of the prompt, if they were asked for; the first one's says nothing"""
        self.prompt_tokens = prompt_tokens
        self._messages = AnswerMessages(request.request_id, prompt_tokens)
        # Serialized fields that a chunk and the whole have beside those of every answer.
        self._chunk_more = self._whole_more = b""
        if index:
            self._chunk_more = pb.GenerateStreamChunk(sequence_index=index).SerializeToString()
            self._whole_more = pb.GenerateComplete(sequence_index=index).SerializeToString()

    @property
    def completion_tokens(self) -> int:
        """Tokens so far."""
        return self._messages.count

    def add(self, tokens: list[int], logprobs: Sequence[TokenLogprob] = ()) -> bytes | None:
        """Take in more tokens; the message that brings them, None if there is none.

        TypeError or ValueError if what is given is not what a message has.
        """
        if self._wants_logprobs:
            self._logprobs += logprobs
        if not tokens or not self._streaming:
            self._messages.add(tokens)
            return None
        more = self._chunk_more
        if self._wants_logprobs and logprobs:
            more += _serialized(pb.GenerateStreamChunk(), logprobs)
        return self._messages.chunk(tokens, self.cached_tokens, more)

    def complete(self, reason: str, matched: object = None) -> bytes:
        """The last message. `matched` is the stop string or token id that ended it, if one did.
        Errors as `add`.
        """
        more = self._whole_more
        if self._logprobs:
            more += _serialized(pb.GenerateComplete(), self._logprobs)
        if self.prompt_logprobs:
            more += _serialized(pb.GenerateComplete(), self.prompt_logprobs, "prompt_logprobs")
        return self._messages.complete(
            reason,
            self.cached_tokens,
            more,
            matched if isinstance(matched, str) else "",
            matched if type(matched) is int and 0 <= matched < 2**32 else None,
        )


def set_cached(answer: TrtllmAnswer, cached: int | None) -> None:
    """Note how much of the prompt its engine found cached, where it says so."""
    if cached is not None:
        answer.cached_tokens = min(cached, answer.prompt_tokens)


def check_length(count: int, most: int) -> None:
    """WorkerError for more tokens than were asked for."""
    if count > most:
        raise WorkerError(f"the engine sent more than the {most} tokens of max_tokens")


def by_logprob(likely: tuple[int, float]) -> float:
    """Sorts the likeliest first."""
    return -likely[1]


def _serialized(message: Any, logprobs: Sequence[TokenLogprob], field: str = "logprobs") -> bytes:
    """The logprobs of an empty message, alone."""
    for each in logprobs:
        added = getattr(message, field).add(token_id=each.token_id, logprob=each.logprob)
        for token_id, logprob in each.top:
            added.top_logprobs.add(token_id=token_id, logprob=logprob)
    data: bytes = message.SerializeToString()
    return data
