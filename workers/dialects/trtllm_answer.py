"""Requests of trtllm.TrtllmService checked, and answers in its words, for other dialects. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...runtime.errors import InvalidRequestError
from ..trtllm_proto import pb

MAX_TOKENS = 2**31 - 1


class TokenLogprob(NamedTuple):
    """A token of an answer with its logprob, and (token id, logprob) of the likeliest ones."""

    token_id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


def check_request(message: Any, engine: str) -> None:
    """InvalidRequestError for a GenerateRequest that asks for what engines of no dialect but trtllm
    can be asked for."""
    sampling = message.sampling_config
    refuse(
        engine,
        {
            "num_return_sequences above 1": sampling.num_return_sequences > 1,
            "beam search": sampling.beam_width > 1,
            "multimodal input": bool(message.multimodal_input.image_data),
            "prompt tuning": bool(message.prompt_tuning_config.embedding_table),
            "disaggregated serving": bool(message.disaggregated_params.request_type),
            "an embedding bias": bool(message.embedding_bias),
            "bad words": bool(message.bad or message.bad_token_ids),
        },
    )
    if not message.max_tokens:
        raise InvalidRequestError("max_tokens is 0", field="max_tokens")


def refuse(engine: str, asked: Mapping[str, bool]) -> None:
    """InvalidRequestError, naming it, for the first thing that is asked for."""
    for what, wanted in asked.items():
        if wanted:
            raise InvalidRequestError(f"{what} is not supported by {engine}")


class TrtllmAnswer:
    """The GenerateResponses of one answer, in order: chunks if it is streamed, then the whole."""

    def __init__(self, request: Any, prompt_tokens: int) -> None:
        self.tokens: list[int] = []
        self.cached_tokens = 0
        """of the prompt, found cached; 0 where it is not known (yet)"""
        self._streaming: bool = request.streaming
        self._wants_logprobs = request.output_config.logprobs > 0
        self._logprobs: list[TokenLogprob] = []
        self._request_id: str = request.request_id
        self.prompt_tokens = prompt_tokens
        self._chunk = pb.GenerateResponse(request_id=request.request_id)
        self._chunk.chunk.prompt_tokens = self.prompt_tokens

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> bytes | None:
        """Take in more tokens; the message that brings them, None if there is none."""
        self.tokens += tokens
        if self._wants_logprobs:
            self._logprobs += logprobs
        if not tokens or not self._streaming:
            return None
        chunk = self._chunk.chunk
        del chunk.token_ids[:], chunk.logprobs[:]
        chunk.token_ids.extend(tokens)
        chunk.completion_tokens = len(self.tokens)
        chunk.cached_tokens = self.cached_tokens
        if self._wants_logprobs:
            _add_logprobs(chunk, logprobs)
        data: bytes = self._chunk.SerializeToString()
        return data

    def complete(self, reason: str, matched: object = None) -> bytes:
        """The last message. `matched` is the stop string or token id that ended it, if one did."""
        response = pb.GenerateResponse(request_id=self._request_id)
        complete = response.complete
        complete.output_token_ids.extend(self.tokens)
        complete.finish_reason = reason
        complete.prompt_tokens = self.prompt_tokens
        complete.completion_tokens = len(self.tokens)
        complete.cached_tokens = self.cached_tokens
        if isinstance(matched, int) and 0 <= matched < 2**32:
            complete.matched_token_id = matched
        elif isinstance(matched, str) and matched:
            complete.matched_stop_str = matched
        _add_logprobs(complete, self._logprobs)
        data: bytes = response.SerializeToString()
        return data


def _add_logprobs(message: Any, logprobs: Sequence[TokenLogprob]) -> None:
    for each in logprobs:
        added = message.logprobs.add(token_id=each.token_id, logprob=each.logprob)
        for token_id, logprob in each.top:
            added.top_logprobs.add(token_id=token_id, logprob=logprob)
