"""How often blocks were used, about, in plain Python: a count-min sketch that ages."""

_ROWS = range(4)
_MASK = 2**64 - 1
_THRESHOLDS = (3, 8, 15)
_MOST = 15


class Frequencies:
    """Of a cache of so many blocks."""

    def __init__(self, blocks: int) -> None:
        self._width = 16
        while self._width < blocks:
            self._width *= 2
        self._limit = 10 * blocks
        self._uses = 0
        self._counters: dict[tuple[int, int], int] = {}

    def add(self, block: int) -> None:
        places = [(row, _mixed(block ^ row) % self._width) for row in _ROWS]
        low = [place for place in places if self._counters.get(place, 0) < _MOST]
        for place in low:
            self._counters[place] = self._counters.get(place, 0) + 1
        self._uses += bool(low)
        if self._uses >= self._limit:
            self._uses //= 2
            self._counters = {place: count // 2 for place, count in self._counters.items()}

    def heat(self, block: int) -> int:
        """0 cold to 3 very hot."""
        least = min(
            self._counters.get((row, _mixed(block ^ row) % self._width), 0) for row in _ROWS
        )
        return sum(least >= threshold for threshold in _THRESHOLDS)


def _mixed(state: int) -> int:
    """splitmix64."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)
