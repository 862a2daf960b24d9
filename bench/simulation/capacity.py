"""The capacity of a fleet: the highest rate of arrivals at which enough requests are good."""

from collections.abc import Callable
from dataclasses import dataclass

from ...process.settings import bad_setting, option

MOST_DOUBLINGS = 8  # of the rate, or halvings, until the search gives up


@dataclass(frozen=True, kw_only=True)
class CapacityConfig:
    """Whether and how to look for it. Raises ConfigError, naming the key, on a bad value."""

    capacity: bool = option(
        False,
        "Find the highest rate at which --capacity-share of the requests meet the relative"
        " objective: some ten runs of each policy and seed.",
    )
    capacity_share: float = option(0.95, "The share of good requests that capacity is found for.")
    capacity_precision: float = option(
        0.02, "How far apart the highest good rate and the lowest bad one may end, as a share."
    )

    def __post_init__(self) -> None:
        if not 0 < self.capacity_share <= 1:
            raise bad_setting("capacity_share", f"{self.capacity_share} must be in 0..1, not 0")
        if not 0 < self.capacity_precision < 1:
            text = f"{self.capacity_precision} must be between 0 and 1"
            raise bad_setting("capacity_precision", text)


def highest_rate(
    share_at: Callable[[float], float], *, start: float, share: float, precision: float
) -> float:
    """The highest rate at which `share_at` is at least `share`, by bisection; 0: none was found.

    The share is taken to fall as the rate grows. From `start` the rate is doubled or halved until
    the threshold lies between two rates, and that span is halved, geometrically, until its ends are
    `precision` apart. The rate returned is one that was tried. Where even the highest rate tried is
    good enough, it is that one.
    """
    good = bad = 0.0
    if share_at(start) >= share:
        good = start
        for _ in range(MOST_DOUBLINGS):
            if share_at(2 * good) < share:
                bad = 2 * good
                break
            good *= 2
        else:
            return good
    else:
        bad = start
        for _ in range(MOST_DOUBLINGS):
            if share_at(bad / 2) >= share:
                good = bad / 2
                break
            bad /= 2
        else:
            return 0.0
    while bad > good * (1 + precision):
        middle: float = (good * bad) ** 0.5
        if share_at(middle) >= share:
            good = middle
        else:
            bad = middle
    return good
