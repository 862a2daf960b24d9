"""Types of the `_residuals` kernel; watch.py keeps them."""

from typing import Self, final

@final
class Residuals:
    """The latest predictions of one kind: how well they did."""

    def __new__(cls, window: int, slack_s: float, least: int) -> Self:
        """As many as `window` count, and fewer than `least` have no scatter. Differences that
        are small beside the slack, in seconds, are none. ValueError if those cannot be."""

    @property
    def count(self) -> int:
        """Predictions, ever."""

    def add(self, foreseen_s: float, took_s: float) -> None:
        """A prediction came true so."""

    def scatter(self) -> float:
        """Median distance of the residuals from their median; 0 while too few are known."""

    def skill(self) -> float:
        """Share of the times' own scatter that was foreseen; 1 while too few are known."""

    def telling(self) -> tuple[float, float]:
        """Seconds foreseen and seen of the latest prediction that is off by as much as half of them
        are, or more. ValueError if there is none at all."""
