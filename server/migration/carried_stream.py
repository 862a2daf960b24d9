"""CarriedStream: what a client has of a streamed answer, and what is asked of the next worker.

Pure: messages of engines in, messages for the client and requests of engines out. Each token goes
to the client once; counts and the whole answer in the last message are those of one answer.
"""

from array import array
from typing import Any

from google.protobuf.message import DecodeError
from xxhash import xxh3_64_intdigest

from ...workers.trtllm_proto import pb

UNREAD = 256
"""This many messages wait to be read: most streams end at their first worker, never read."""
ENDED_EARLY = frozenset(("cancelled", "abort", "aborted"))
"""Reasons of an engine that ends an unfinished answer: it shuts down, unless a client aborted."""
_INT63 = (1 << 63) - 1


class EndedEarlyError(Exception):
    """The engine ended the stream without a failure, and without having finished it."""


class CarriedStream:
    """One streamed answer of one sequence. `request` is the serialized GenerateRequest, under
    the id that engines know it by."""

    def __init__(self, request: bytes, request_id: str) -> None:
        self._request = request
        self._chunk_head = _chunk_head(request_id.encode())
        """how a chunk of this request begins: such a message is kept as it is"""
        self._unread: list[bytes] = []
        self._tokens = array("I")
        self._logprobs: list[Any] = []
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._before = 0
        self._moved = False
        self.body = request
        """what is asked of the current worker; empty where nothing is left to be generated"""
        self.moves = 0
        """how often it went on at another worker"""
        self.messages = 0
        """of all workers"""
        self.is_readable = True
        """whether all that the client got was understood"""
        self.last: bytes = b""
        """the message that ended the answer, as the client got it"""

    def take(self, message: bytes) -> bytes:
        """A message of the current worker, as its client is to get it.

        EndedEarlyError in place of a last message that ends what is not finished.
        """
        self.messages += 1
        if not self._moved and self._chunk_head and message.startswith(self._chunk_head):
            self._unread.append(message)
            if len(self._unread) >= UNREAD:
                self._read()
            return message
        try:
            response = pb.GenerateResponse.FromString(message)
        except DecodeError:  # an affair of the engine and its client
            self.is_readable = False
            return message
        if response.HasField("complete"):
            return self._complete(message, response)
        if not self._moved:
            self._unread.append(message)
            return message
        chunk = response.chunk
        self._keep(chunk)
        chunk.completion_tokens = len(self._tokens)
        self._correct(chunk)
        data: bytes = response.SerializeToString()
        return data

    @property
    def delivered(self) -> int:
        """Tokens that the client has."""
        self._read()
        return len(self._tokens)

    def read_request(self) -> Any:
        """The request as its client sent it, decoded."""
        return pb.GenerateRequest.FromString(self._request)

    def move(self) -> bytes | None:
        """The request for the rest of the answer; from now on messages are of the next worker.

        None: nothing is left to be generated; take `end` as the last message.
        """
        self._read()
        request, count = self.read_request(), len(self._tokens)
        if not self._prompt_tokens:
            self._prompt_tokens = len(request.tokenized.input_token_ids)
        self._moved, self._before = True, count
        if count >= request.max_tokens or self._stop_token(request) is not None:
            return None
        request.tokenized.input_token_ids.extend(self._tokens)
        request.max_tokens -= count
        sampling = request.sampling_config
        if sampling.min_tokens:
            sampling.min_tokens = max(0, sampling.min_tokens - count)
        if sampling.HasField("seed"):
            # The engine begins its random numbers anew: with the same seed it would draw those
            # again that made the first tokens.
            sampling.seed = xxh3_64_intdigest(f"{sampling.seed}/{count}".encode()) & _INT63
        body: bytes = request.SerializeToString()
        return body

    def go_on(self, body: bytes | None) -> None:
        """It moves: the next worker is asked for what `move` returned."""
        self.moves += 1
        self.body = body or b""

    def end(self) -> bytes:
        """What an engine would say that has nothing left to generate; to be taken."""
        request = self.read_request()
        response = pb.GenerateResponse(request_id=request.request_id)
        complete, stop = response.complete, self._stop_token(request)
        complete.finish_reason = "length" if stop is None else "stop"
        if stop is not None:
            complete.matched_token_id = stop
        message: bytes = response.SerializeToString()
        return message

    def _complete(self, message: bytes, response: Any) -> bytes:
        complete = response.complete
        if complete.finish_reason in ENDED_EARLY:
            raise EndedEarlyError(complete.finish_reason)
        if self._moved:
            come = len(self._tokens) - self._before  # in chunks; the rest is in this one alone
            self._tokens.extend(complete.output_token_ids[come:])
            self._logprobs.extend(complete.logprobs[come:])
            self._whole(complete)
            message = response.SerializeToString()
        self.last = message
        return message

    def _whole(self, complete: Any) -> None:
        del complete.output_token_ids[:], complete.logprobs[:]
        complete.output_token_ids.extend(self._tokens)
        complete.logprobs.extend(self._logprobs)
        complete.completion_tokens = len(self._tokens)
        self._correct(complete)

    def _correct(self, counts: Any) -> None:
        """Let counts be those of the client's prompt, not of the one that was sent again."""
        counts.prompt_tokens, counts.cached_tokens = self._prompt_tokens, self._cached_tokens

    def _read(self) -> None:
        messages, self._unread = self._unread, []
        for message in messages:
            try:
                chunk = pb.GenerateResponse.FromString(message).chunk
            except DecodeError:
                self.is_readable = False
                continue
            self._prompt_tokens = chunk.prompt_tokens or self._prompt_tokens
            self._cached_tokens = max(self._cached_tokens, chunk.cached_tokens)
            self._keep(chunk)

    def _keep(self, chunk: Any) -> None:
        self._tokens.extend(chunk.token_ids)
        self._logprobs.extend(chunk.logprobs)

    def _stop_token(self, request: Any) -> int | None:
        """The stop token that the answer ended with, if it did."""
        if len(self._tokens) <= request.sampling_config.min_tokens:
            return None
        last = self._tokens[-1] if self._tokens else None
        return last if last in request.stop_token_ids else None


def _chunk_head(name: bytes) -> bytes:
    """How a chunk begins that answers the request of this id; empty if the id is long."""
    return b"\x0a" + bytes((len(name),)) + name + b"\x12" if len(name) < 128 else b""
