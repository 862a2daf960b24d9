"""Retention: which of a request's blocks its engine is asked to keep cached, and for how long.

As TensorRT-LLM's KvCacheRetentionConfig, whose JSON is the `config_json` of a GenerateRequest's
field `kv_cache_retention`. A range counts for the blocks whose first token is in it; of several the
first one. A priority above the usual one falls to that after its duration.
"""

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple, Self

import msgspec

from ..base.errors import InvalidRequestError

FIELD = "kv_cache_retention"
LEAST, USUAL, MOST = 0, 35, 100
RETURNING_KEY = "x-dynamo-returning-tokens"
"""Metadata of a request: how many of its tokens a later request begins with; 0: none returns."""

_END = 2**32 - 1
_Tokens = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Priority = Annotated[int, msgspec.Meta(ge=LEAST, le=MOST)]
_Duration = Annotated[float, msgspec.Meta(gt=0)] | None


class Span(NamedTuple):
    """Blocks `first` to `end`, without that, are let go of at this priority."""

    first: int
    end: int
    priority: int
    seconds: float  # that a priority above the usual one lasts; inf: until they are evicted


class TokenRange(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a prompt; `token_end` None: to its end."""

    token_start: _Tokens = 0
    token_end: _Tokens | None = None
    priority: _Priority = USUAL
    duration_ms: _Duration = None


class Retention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked for a prompt by ranges, and for what is generated behind it."""

    token_range_retention_configs: Annotated[
        tuple[TokenRange, ...], msgspec.Meta(max_length=64)
    ] = ()
    decode_retention_priority: _Priority = USUAL
    decode_duration_ms: _Duration = None

    @classmethod
    def whole(cls, priority: int, seconds: float = math.inf) -> Self:
        """The same for all of a request."""
        duration_ms = None if seconds == math.inf else seconds * 1e3
        return cls(
            token_range_retention_configs=(TokenRange(priority=priority, duration_ms=duration_ms),),
            decode_retention_priority=priority,
            decode_duration_ms=duration_ms,
        )

    @classmethod
    def read(cls, text: str) -> Self:
        """Of its JSON, in which keys that are not known do not count; InvalidRequestError."""
        try:
            return msgspec.json.decode(text or "{}", type=cls)
        except msgspec.MsgspecError as error:
            raise InvalidRequestError(f"{FIELD}.config_json: {error}", field=FIELD) from None

    def json(self) -> str:
        """What `read` reads."""
        return msgspec.json.encode(self).decode()

    def spans(self, prompt_tokens: int, block_size: int) -> Sequence[Span]:
        """In blocks of a request with such a prompt. Those in no span are kept as usual."""
        prompt_blocks = -(-prompt_tokens // block_size)
        found = []
        for each in self.token_range_retention_configs:
            end = prompt_blocks
            if each.token_end is not None:
                end = min(end, -(-each.token_end // block_size))
            first = -(-each.token_start // block_size)
            found.append(Span(first, end, each.priority, _seconds(each.duration_ms)))
        decode = self.decode_retention_priority, _seconds(self.decode_duration_ms)
        return [*found, Span(prompt_blocks, _END, *decode)]


def returning_spans(returning_tokens: int, block_size: int) -> Sequence[Span]:
    """What is asked for a request of which a later one begins with `returning_tokens`, prompt and
    answer together, and nothing else returns.
    """
    blocks = returning_tokens // block_size
    return [Span(0, blocks, MOST, math.inf), Span(blocks, _END, LEAST, math.inf)]


def _seconds(duration_ms: float | None) -> float:
    return math.inf if duration_ms is None else duration_ms / 1e3
