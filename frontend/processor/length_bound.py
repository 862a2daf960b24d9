"""The longest text that one token can stand for, as far as a tokenizer's file says: a text that is
longer than that for each token it may have is refused before the work."""

from collections.abc import Iterable
from typing import Any

import msgspec

COMPOSED = 4
"""Characters of which Unicode's form NFC makes one, at most."""
_KEEPING = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split")
"""Steps that make words of a text, and leave nothing of it out."""


class _Added(msgspec.Struct):
    lstrip: bool = False
    rstrip: bool = False


class _Model(msgspec.Struct):
    type: str = ""
    byte_fallback: bool = False


class _File(msgspec.Struct):
    added_tokens: list[_Added] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    model: _Model = msgspec.field(default_factory=_Model)


def most_characters(file: bytes, vocabulary: Iterable[str]) -> int | None:
    """Of a text, for each token that it has; None: there may be any number, as steps of this
    tokenizer leave some out, or take many that it does not know for one.

    `file` is tokenizer.json, `vocabulary` has its tokens, as they are written there: a character
    each for a byte, or for a character.
    """
    try:
        found = msgspec.json.decode(file, type=_File)
    except msgspec.DecodeError:
        return None
    words, normalizers = _steps(found.pre_tokenizer), _steps(found.normalizer)
    by_bytes = any(step.get("type") == "ByteLevel" for step in words)
    if (
        found.model.type != "BPE"
        or not (by_bytes or found.model.byte_fallback)
        or any(token.lstrip or token.rstrip for token in found.added_tokens)
        or not all(map(_keeps, words))
        or not all(map(_keeps_characters, normalizers))
    ):
        return None
    longest = max(map(len, vocabulary), default=1)
    composes = any(step.get("type") == "NFC" for step in normalizers)
    return longest * COMPOSED if composes else longest


def _steps(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    if step is None:
        return []
    if step.get("type") != "Sequence":
        return [step]
    parts = step.get("pretokenizers") or step.get("normalizers") or []
    return [each for part in parts for each in _steps(part)]


def _keeps(step: dict[str, Any]) -> bool:
    return step.get("type") in _KEEPING and step.get("behavior") != "Removed"


def _keeps_characters(step: dict[str, Any]) -> bool:
    if step.get("type") == "Replace":  # as of a blank by another character
        pattern = step.get("pattern") or {}
        return len(pattern.get("String", "  ")) <= len(step.get("content", ""))
    return step.get("type") in ("NFC", "Prepend")
