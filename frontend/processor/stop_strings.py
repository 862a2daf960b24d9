"""Stop strings in a text that comes piece by piece. Pure."""

from collections.abc import Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """What may be shown now; `stopped_by` is the stop string that ended the text, if one did."""

    text: str
    stopped_by: str | None = None


class StopStrings:
    """Holds back what could become a stop string, and nothing more.

    Of several that end at the same character, the one that begins first counts. `include`: the
    stop string is shown too.
    """

    def __init__(self, stops: Iterable[str], *, include: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._include = include
        self._held = ""
        self._longest = max(map(len, self._stops), default=0)
        self.stopped_by: str | None = None

    def feed(self, text: str) -> Piece:
        """The next piece of the text; after a stop nothing comes any more."""
        if self.stopped_by is not None or not text:
            return Piece("", self.stopped_by)
        if not self._stops:
            return Piece(text)
        held = len(self._held)
        text = self._held + text
        # One that ended in what was held had been found then.
        found = self._first_end(text, held)
        if found is not None:
            start, stop = found
            self.stopped_by, self._held = stop, ""
            return Piece(text[: start + len(stop) if self._include else start], stop)
        keep = self._overhang(text)
        self._held = text[len(text) - keep :]
        return Piece(text[: len(text) - keep])

    def flush(self) -> str:
        """The text is over: what was held is no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_end(self, text: str, held: int) -> tuple[int, str] | None:
        """Where the stop string that is complete first begins, and which it is."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, held - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = start + len(stop), start, stop
        return None if best is None else best[1:]

    def _overhang(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(len(stop) > length and text.endswith(stop[:length]) for stop in self._stops):
                return length
        return 0
