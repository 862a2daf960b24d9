"""The latest predictions of one kind, kept in a list and sorted anew at each question."""

import math


class ResidualsOracle:
    """Plain twin of the kernel `_residuals`."""

    def __init__(self, window: int, slack_s: float, least: int) -> None:
        self._window, self._slack_s, self._least = window, slack_s, least
        self._kept: list[tuple[float, float]] = []  # foreseen and seen, in seconds
        self.count = 0

    def add(self, foreseen_s: float, took_s: float) -> None:
        self.count += 1
        self._kept = [*self._kept, (foreseen_s, took_s)][-self._window :]

    def scatter(self) -> float:
        return 0.0 if self.count < self._least else scatter_of(self._residuals())

    def skill(self) -> float:
        if self.count < self._least:
            return 1.0
        usual = scatter_of([self._log(took) for _, took in self._kept])
        return 1.0 - self.scatter() / usual if usual > 0 else -math.inf

    def telling(self) -> tuple[float, float]:
        residuals, scatter = self._residuals(), self.scatter()
        middle = sorted(residuals)[len(residuals) // 2]
        off = [abs(residual - middle) >= scatter for residual in residuals]
        return max(zip(range(len(off)), off, self._kept, strict=True), key=lambda e: (e[1], e[0]))[
            2
        ]

    def _residuals(self) -> list[float]:
        return [self._log(took) - self._log(foreseen) for foreseen, took in self._kept]

    def _log(self, seconds: float) -> float:
        return math.log(max(0.0, seconds) + self._slack_s)


def scatter_of(values: list[float]) -> float:
    """Median distance from the median, of the upper ones where there are two."""
    middle = sorted(values)[len(values) // 2]
    return sorted(abs(value - middle) for value in values)[len(values) // 2]
