"""How one of the workers is drawn by cost. Pure: what is random comes from the generator given."""

from typing import Protocol

import numpy as np

from ...base.errors import NoWorkersError
from . import _dynamo_cost
from .dynamo_cost import Floats


class Rng(Protocol):
    """A source of uniform numbers in [0, 1), such as random.Random."""

    def random(self) -> float: ...


def pick(costs: Floats, temperature: float, rng: Rng) -> int:
    """Draw a worker by cost: the lowest at temperature 0, by softmax of the scaled costs above it.

    p_i ~ exp(-(c_i - c_min) / ((c_max - c_min) * temperature)). Ties are uniform. One number is
    drawn from `rng` whatever the costs, so that a seed gives the same run. Costs that are not
    finite are out; NoWorkersError if none is left.
    """
    number = _dynamo_cost.pick(costs, temperature, rng.random())
    if number < 0:
        raise no_workers_left()
    return number


def no_workers_left() -> NoWorkersError:
    """What is raised where no cost is finite."""
    return NoWorkersError("no worker is left after filtering and scoring")


def pick_lowest(costs: Floats, rng: Rng) -> int:
    """The lowest cost; ties are uniform."""
    return pick(costs, 0.0, rng)


def pick_of_two(costs: Floats, rng: Rng) -> int:
    """The cheaper of two different workers drawn at random, whichever was drawn first if equal."""
    numbers = np.flatnonzero(np.isfinite(costs))
    if len(numbers) < 2:
        return pick_lowest(costs, rng)
    first = int(rng.random() * len(numbers))
    second = int(rng.random() * (len(numbers) - 1))
    second += second >= first
    one, other = int(numbers[first]), int(numbers[second])
    return one if costs[one] <= costs[other] else other
