"""TemplateChecks: now and then a long turn's text is written as a whole, too, beside what was made
of its beginnings. If they differ, the model's chats have no beginnings any more."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import structlog
from blake3 import blake3

from ..base.errors import InvalidRequestError
from .chat_items import NOTHING_KNOWN, ChatItems, ItemsApart, Messages
from .engine_requests import Given
from .openai import BAD_BODY, ApiError
from .processor import ChatTemplate, Grown, ModelText

CHECKED_OF = 200
"""Turns that go on from what is kept, of which one is checked, the first one too. To write a text
anew takes some ten times what such a turn takes."""
FAULT = "off: a turn was not what the chat template writes of it"

log = structlog.get_logger(__name__)


class Piece(Protocol):
    """A part of a text, up to which all is encoded."""

    chars: int
    tail: str
    digest: bytes


class Turn(NamedTuple):
    """One that is checked: what it goes on from, and how it is written behind that."""

    apart: ItemsApart
    lead: Messages
    given: Given
    pieces: Sequence[Piece]
    grown: Grown
    grow: Callable[[], Grown | None]
    """writes it once more"""


def digest_of(text: str) -> bytes:
    """By which a piece of a text is compared."""
    return blake3(text.encode("utf-8", "surrogatepass")).digest(16)


class TemplateChecks:
    """Of one model."""

    def __init__(self, text: ModelText) -> None:
        self._text, self._turns = text, 0

    def is_due(self) -> bool:
        """Whether this turn is to be checked."""
        self._turns += 1
        return self._turns % CHECKED_OF == 1

    def compare(self, template: ChatTemplate, turn: Turn) -> str:
        """Whether a turn's text is the whole one's: same, differs, or unsure, where the template
        writes another text each time or a day. Takes no part of the event loop's state."""
        for _ in range(2):  # the second time, if an hour or a day began between them
            whole = _whole(template, turn)
            if whole is not None and _is_text(whole, turn):
                return "same"
            if _whole(template, turn) != whole:
                return "unsure"
            if (grown := turn.grow()) is None or grown.used != turn.grown.used:
                return "unsure"  # with another date it goes on from another beginning
            turn = turn._replace(grown=grown)
        return "differs"

    def note(self, verdict: str) -> bool:
        """Count it; whether the turn can be used."""
        self._text.pieces.checks[verdict] += 1
        if verdict != "differs":
            return True
        self._text.long_chats = FAULT
        log.error(
            "long chats are written as a whole from now on: the text that went on from a kept one"
            " was not what the chat template writes",
            model_path=str(self._text.folder),
        )
        return False


def _whole(template: ChatTemplate, turn: Turn) -> str | None:
    """None: the template, or what reads items, refuses it."""
    given = turn.given
    try:
        return template.render_whole(
            ChatItems(turn.apart, NOTHING_KNOWN, turn.lead).messages,
            tools=given.tools,
            variables=given.variables,
            add_generation_prompt=given.prompted,
        )
    except (*BAD_BODY, ApiError, InvalidRequestError):
        return None


def _is_text(whole: str, turn: Turn) -> bool:
    begin, tail = 0, ""
    for piece in turn.pieces:
        tail = piece.tail
        end = piece.chars - len(tail)
        if digest_of(whole[begin:end]) != piece.digest:
            return False
        begin = end
    return whole[begin:] == "".join((tail, *turn.grown.text))
