"""Markers in a text that comes piece by piece."""

import re
from functools import lru_cache
from typing import NamedTuple

_SPACE = re.compile(r"\s+")
MOST_BLANKS = 1024
"""White space that is held back for a marker behind it; with more, none is expected any more."""


class Cut(NamedTuple):
    """What came before a marker, and which marker is there; "": none."""

    text: str
    found: str


class MarkerScanner:
    """Looks for markers and holds back only what could become one.

    A long piece with many markers is walked through once: what was taken of it is cut off when it
    is used up, and a caller that looks for several markers looks for all of them at once.
    """

    def __init__(self) -> None:
        self._held = ""
        self._at = 0  # what is before it was taken

    def feed(self, text: str) -> None:
        """The next piece."""
        self._held, self._at = self._held[self._at :] + text, 0

    def take_until(self, *markers: str) -> Cut:
        """What is surely before the first of the markers, which is dropped if it is there; what
        follows stays."""
        held, at = self._held, self._at
        if found := _any_of(markers).search(held, at):
            self._at = found.end()
            return Cut(held[at : found.start()], found[0])
        end = len(held) - max(_overhang(held, at, marker) for marker in markers)
        self._at = end
        return Cut(held[at:end], "")

    def peek(self) -> str:
        """What has not been taken."""
        return self._held[self._at :]

    @property
    def is_blank(self) -> bool:
        """Whether it begins with more white space than is held back."""
        held, at = self._held, self._at
        return len(held) - at > MOST_BLANKS and held[at : at + MOST_BLANKS].isspace()

    def begun(self, most: int) -> str:
        """The first characters of it behind white space."""
        found = _SPACE.match(self._held, self._at)
        at = found.end() if found else self._at
        return self._held[at : at + most]

    def take_all(self) -> str:
        """All of it: the text is over."""
        held = self.peek()
        self._held, self._at = "", 0
        return held


@lru_cache(maxsize=64)
def _any_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)))


def _overhang(text: str, at: int, marker: str) -> int:
    """Length of the longest end of the text, from there on, that the marker begins with."""
    for length in range(min(len(marker) - 1, len(text) - at), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
