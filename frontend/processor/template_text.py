"""What is written around the contents of messages, and how a rendering shows it."""

import re
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, NamedTuple

EDGES = LEFT, RIGHT = "\x1e", "\x1f"
"""White space as far as `strip` goes, which no template writes: it shows what was stripped."""
CONTENT = "content"


class TextPiece(NamedTuple):
    """What is written before a content, and which one that is; `left` and `right`: whether it is
    stripped there. The last piece has none."""

    before: str
    nth: int = -1
    left: bool = False
    right: bool = False


Shape = tuple[tuple[str, bool], ...]
"""Of messages: the role of each, and whether it has a content."""


def marked(shape: Shape) -> tuple[list[dict[str, str]], str]:
    """Messages of this shape with marks as their contents, and what all of these have."""
    mark = token_hex(16)  # nothing else in the text is like it
    return [
        {"role": role, CONTENT: f"{LEFT}{mark}{nth}-{RIGHT}" if has_content else ""}
        for nth, (role, has_content) in enumerate(shape)
    ], mark


def pieces_of(text: str, mark: str) -> list[TextPiece]:
    """Of what was made of marked messages."""
    *most, last = re.split(f"({LEFT}?){mark}(\\d+)-({RIGHT}?)", text)
    pieces = [
        TextPiece(before, int(nth), not left, not right)
        for before, left, nth, right in zip(*[iter(most)] * 4, strict=True)
    ]
    return [*pieces, TextPiece(last)]


def taken_apart(messages: Sequence[Mapping[str, Any]]) -> tuple[Shape, list[str]] | None:
    """The shape of messages, and their contents; None: they have more than roles and texts."""
    contents: list[str] = []
    shape: list[tuple[str, bool]] = []
    for message in messages:
        role, content = message.get("role"), message.get(CONTENT)
        if len(message) != 2 or not isinstance(role, str) or not isinstance(content, str):
            return None
        if not role.isprintable():
            return None  # it may look like an edge of a mark
        if content and content.isspace():
            return None  # stripped it would be empty
        contents.append(content)
        shape.append((role, bool(content)))
    return tuple(shape), contents


def written(pieces: Sequence[TextPiece], contents: Sequence[str], first: int = 0) -> list[str]:
    """The parts of a text; the contents begin with that of message `first`."""
    text: list[str] = []
    for before, nth, left, right in pieces:
        text.append(before)
        if nth >= 0:
            content = contents[nth - first]
            if left:
                content = content.lstrip()
            text.append(content.rstrip() if right else content)
    return text
