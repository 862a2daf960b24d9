"""What routing needs to know of an engine's answers, which themselves travel as bytes.

Whether one can be read at all is an affair of the engine and its client: one that cannot says
nothing here.
"""

from typing import NamedTuple

from google.protobuf.message import DecodeError

from ...workers.finish_reasons import ABORTED, SHOWN_REASONS
from ...workers.trtllm_proto import pb
from ._generate_answer import cached_tokens_of, check_finish, parse_answer

__all__ = [
    "BLANK_BYTES",
    "Usage",
    "cached_tokens_of",
    "check_finish",
    "is_blank",
    "is_whole",
    "usage_of",
]

BLANK_BYTES = 512
"""A longer message has something in it."""
_UNREADABLE = None, 1, 0, 0  # neither a chunk nor complete, and not blank


class Usage(NamedTuple):
    """What a worker says at the end of an answer, in tokens."""

    completion_tokens: int
    cached_tokens: int


def usage_of(message: bytes) -> Usage | None:
    """What the last message of an answer says of all of it; None: it is not the last."""
    whole, _, completion_tokens, cached_tokens = _read(message)
    return Usage(completion_tokens, cached_tokens) if whole else None


def is_blank(message: bytes) -> bool:
    """Whether an answer of this one message has no token at all."""
    if len(message) > BLANK_BYTES:
        return False
    _, tokens, completion_tokens, _ = _read(message)
    return not tokens and not completion_tokens


def is_whole(message: bytes) -> bool:
    """Whether it ends an answer of one sequence that came to its end."""
    try:
        response = pb.GenerateResponse.FromString(message)
    except DecodeError:
        return False
    reason: str = response.complete.finish_reason
    return bool(response.HasField("complete")) and SHOWN_REASONS.get(reason, reason) != ABORTED


def _read(message: bytes) -> tuple[bool | None, int, int, int]:
    try:
        return parse_answer(message)
    except ValueError:
        return _UNREADABLE
