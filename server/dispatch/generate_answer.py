"""What routing needs to know of an engine's answers, which themselves travel as bytes.

Whether one can be read at all is an affair of the engine and its client: one that cannot says
nothing here.
"""

from typing import NamedTuple

from ...workers.finish_reasons import SHOWN_REASONS, check_reason
from ._generate_answer import parse_answer, progress_in

BLANK_BYTES = 512
"""A longer message has something in it."""
_KNOWN_REASONS = {each.encode() for each in SHOWN_REASONS}
_UNREADABLE = None, 1, 0, 0  # neither a chunk nor complete, and not blank


class Usage(NamedTuple):
    """What a worker says at the end of an answer, in tokens."""

    completion_tokens: int
    cached_tokens: int


def cached_tokens_of(message: bytes) -> int | None:
    """Prompt tokens found cached, by an engine's first streamed message; None: not reported."""
    whole, _, _, cached_tokens = _read(message)
    return cached_tokens if whole is False else None


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


def check_finish(message: bytes) -> int:
    """Tokens that are out in all, by a streamed message; 0: not reported. EngineCallError if it is
    the last message of an answer that the engine could not go on with, or that ended for a reason
    that is none."""
    found = progress_in(message)
    if isinstance(found, int):
        return found
    if found not in _KNOWN_REASONS:
        check_reason(found.decode(errors="replace"))
    return 0


def _read(message: bytes) -> tuple[bool | None, int, int, int]:
    try:
        return parse_answer(message)
    except ValueError:
        return _UNREADABLE
