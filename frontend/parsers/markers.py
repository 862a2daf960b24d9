"""Markers in a text that comes piece by piece."""

from typing import NamedTuple


class Cut(NamedTuple):
    """What came before a marker, and which marker is there; "": none."""

    text: str
    found: str


class MarkerScanner:
    """Looks for markers and holds back only what could become one."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> None:
        """The next piece."""
        self._held += text

    def take_until(self, *markers: str) -> Cut:
        """What is surely before the first of the markers, which is dropped if it is there; what
        follows stays."""
        held = self._held
        places = [(at, marker) for marker in markers if (at := held.find(marker)) >= 0]
        if places:
            at, marker = min(places)
            self._held = held[at + len(marker) :]
            return Cut(held[:at], marker)
        end = len(held) - max(_overhang(held, marker) for marker in markers)
        self._held = held[end:]
        return Cut(held[:end], "")

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
