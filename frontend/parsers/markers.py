"""Markers in a text that comes piece by piece."""

from typing import NamedTuple


class Cut(NamedTuple):
    """What came before a marker, and whether the marker is there."""

    text: str
    found: bool


class MarkerScanner:
    """Looks for markers and holds back only what could become one."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> None:
        """The next piece."""
        self._held += text

    def take_until(self, marker: str) -> Cut:
        """What is surely before the marker, which is dropped if it is there; what follows stays."""
        at = self._held.find(marker)
        if at >= 0:
            before, self._held = self._held[:at], self._held[at + len(marker) :]
            return Cut(before, True)
        keep = _overhang(self._held, marker)
        end = len(self._held) - keep
        before, self._held = self._held[:end], self._held[end:]
        return Cut(before, False)

    def peek(self) -> str:
        """What has not been taken."""
        return self._held

    def take_all(self) -> str:
        """All of it: the text is over."""
        held, self._held = self._held, ""
        return held


def _overhang(text: str, marker: str) -> int:
    """Length of the longest end of the text that the marker begins with."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
