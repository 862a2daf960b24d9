"""What an answer that passes by says of itself: tokens so far, and its usage. Pure.

Nothing of it is changed, and nothing of it is trusted: what cannot be read is passed over.
"""

from collections.abc import Mapping

import msgspec

from ...workers.dialects import EventReader
from ...workers.trtllm_proto import pb
from ..openai import BAD_BODY

LONGEST_EVENT = 1 << 20
"""Bytes of an event, or of an answer that comes whole, beyond which its usage is not read."""
_DONE = b"[DONE]"


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_ANSWER = msgspec.json.Decoder(_Answer)
_MOST = 2**31 - 1


class PassingAnswer:
    """Counts what passes, and says it in messages as engines of trtllm.TrtllmService send them."""

    def __init__(self, headers: Mapping[str, str], prompt_tokens: int) -> None:
        """By the headers of the answer. An event of a stream counts as a token until its usage
        says how many there were."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        readable = not headers.get("content-encoding")
        self._events = EventReader(LONGEST_EVENT) if kind == "text/event-stream" else None
        self._whole: bytearray | None = None
        if readable and kind == "application/json":
            self._whole = bytearray()
        self._readable = readable
        self._prompt_tokens = prompt_tokens
        self.tokens = self.cached_tokens = 0

    def feed(self, data: bytes) -> bytes | None:
        """Bytes of it; a message if they bring tokens of a stream."""
        if self._events is None:
            if self._whole is not None:
                self._whole += data
                if len(self._whole) > LONGEST_EVENT:
                    self._whole = None
            return None
        if not self._readable:
            self.tokens += 1
        elif not self._read_events(data):
            return None
        chunk = pb.GenerateStreamChunk(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self.tokens,
            cached_tokens=self.cached_tokens,
        )
        message: bytes = pb.GenerateResponse(chunk=chunk).SerializeToString()
        return message

    def complete(self) -> bytes:
        """The last message."""
        if self._whole is not None:
            self._take_usage(bytes(self._whole))
        whole = pb.GenerateComplete(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self.tokens,
            cached_tokens=self.cached_tokens,
            finish_reason="stop",
        )
        message: bytes = pb.GenerateResponse(complete=whole).SerializeToString()
        return message

    def _read_events(self, data: bytes) -> bool:
        """Whether there were events with tokens."""
        assert self._events is not None
        before = self.tokens
        try:
            for event in self._events.feed(data):
                if event.strip() == _DONE:
                    continue
                if b'"usage"' not in event or not self._take_usage(event):
                    self.tokens += 1
        except OverflowError:
            self._readable = False
        return self.tokens > before or not self._readable

    def _take_usage(self, data: bytes) -> bool:
        """Whether it has a usage."""
        try:
            usage = _ANSWER.decode(data).usage
        except BAD_BODY:
            return False
        if usage is None:
            return False
        self.tokens = min(max(self.tokens, usage.completion_tokens), _MOST)
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            self.cached_tokens = min(max(0, details.cached_tokens), self._prompt_tokens)
        return True
