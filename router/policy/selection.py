"""Which worker gets a request: one small strategy per mode. Called by kv_router.py.

A strategy is three stages that can be replaced one by one: a filter narrows the eligible workers,
a score gives each a cost, a pick draws one. Stages see the request as Candidates. Pure: whatever is
random comes out of the generator that is handed in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...runtime.errors import InvalidRequestError, NoWorkersError, RouterError
from ...slots.table import SlotTable
from ...workers.registry import WorkerEntry
from . import _cost
from .base import Hold, Mode
from .cost import Blocks, CostParams, Counts, Floats, Mask, score


class Rng(Protocol):
    """A source of uniform numbers in [0, 1), such as random.Random."""

    def random(self) -> float: ...


class Candidates:
    """One request before the workers. Arrays are by worker number; loads are computed when asked.

    `eligible` are the workers it may go to; `overlaps` (blocks) and `seq_hashes` are None where
    the mode has no use for them, the lower tiers' overlaps where there are none. `spared` are the
    blocks of prefill that all tiers together save, each at its weight: `overlaps` if there is only
    the device. `now` is the router's time. Good for one decision: the loads are those of when they
    were first asked for.
    """

    def __init__(
        self,
        slots: SlotTable,
        *,
        isl: int,
        eligible: Mask,
        overlaps: Blocks | None = None,
        seq_hashes: npt.NDArray[np.uint64] | None = None,
        host_overlaps: Blocks | None = None,
        disk_overlaps: Blocks | None = None,
        spared: Blocks | None = None,
        now: float = 0.0,
    ) -> None:
        self.slots = slots
        self.now = now
        self.isl = isl
        self.block_size = slots.block_size
        self.eligible = eligible
        self.overlaps = overlaps
        self.seq_hashes = seq_hashes
        self.host_overlaps = host_overlaps
        self.disk_overlaps = disk_overlaps
        self.spared = overlaps if spared is None else spared
        # Not cached_property: in Python 3.11 it takes a lock, which costs more than the arrays do.
        self._potential_blocks: Floats | None = None
        self._prefill_tokens: Counts | None = None
        self._active_requests: Counts | None = None

    @property
    def potential_blocks(self) -> Floats:
        """Decode blocks each worker would have with this request."""
        if self._potential_blocks is None:
            self._potential_blocks = self.slots.potential(self.seq_hashes, self.isl, None)[0]
        return self._potential_blocks

    @property
    def prefill_tokens(self) -> Counts:
        """Prompt tokens each worker has still to prefill, without this request."""
        if self._prefill_tokens is None:
            self._prefill_tokens = self.slots.active_prefill_tokens()
        return self._prefill_tokens

    @property
    def active_requests(self) -> Counts:
        """Requests each worker has in flight, without this one."""
        if self._active_requests is None:
            self._active_requests = self.slots.active_requests()
        return self._active_requests


class Observer(Protocol):
    """Hears what becomes of requests, in the order it happens; called under the router's lock.

    Times are those of the router's clock, `number` is a worker's. A request is booked once and
    ends once, if it does not go with its worker; a first token need not come.
    """

    def on_worker(self, number: int, entry: WorkerEntry) -> None:
        """A worker came, or what is known of it has changed."""

    def on_worker_gone(self, number: int) -> None:
        """A worker left, and its requests with it."""

    def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
        """A request goes to a worker, whoever chose it. The candidates are those it was one of."""

    def on_first_token(self, request_id: str, now: float) -> None:
        """Its first token is out."""

    def on_end(self, request_id: str, now: float, output_tokens: int | None) -> None:
        """It ended, however; `output_tokens` where somebody has counted them."""


Filter = Callable[[Candidates], Mask]  # of the eligible workers, those that may be scored
Score = Callable[[Candidates], Floats]  # cost of each worker; inf or nan where it is out
Explain = Callable[[Candidates], Mapping[int, Mapping[str, float]]]  # terms by worker number
Pick = Callable[[Floats, Rng], int]  # the number of a worker whose cost is finite


@dataclass(frozen=True)
class Strategy:
    """How a mode chooses. `needs_overlaps` says whether its stages look at the caches at all.

    An `observer` is told what becomes of requests: such a strategy belongs to one router. `explain`
    says what the costs of candidates are made of; its `cost` is what the score would be. With a
    `hold`, requests wait in the admission queue until it says that they should go.
    """

    score: Score
    pick: Pick
    filter: Filter | None = None
    needs_overlaps: bool = False
    observer: Observer | None = None
    explain: Explain | None = None
    hold: Hold | None = None

    def __call__(self, candidates: Candidates, rng: Rng) -> int:
        """The number of the chosen worker; NoWorkersError if the stages leave none."""
        if self.filter is not None:
            candidates.eligible = candidates.eligible & self.filter(candidates)
        return self.pick(self.score(candidates), rng)


def strategy(mode: Mode, params: CostParams | None = None, temperature: float = 0.0) -> Strategy:
    """A mode's strategy; only `kv` has use for `params` and `temperature`. KeyError on no mode.

    A round-robin strategy remembers its turn, so make one and keep it.
    """
    return _MODES[mode](params or CostParams(), temperature)


def choose(
    how: Strategy,
    candidates: Candidates,
    rng: Rng,
    *,
    allowed: Mask | None = None,
    pinned: int | None = None,
    busy: Mask | None = None,
) -> int:
    """The number of the worker that a request goes to.

    `allowed` are the workers the request accepts, None for all; `busy` are those that have all
    they can take. A `pinned` worker is not compared with others, only checked. Raises
    NoWorkersError if no worker may take the request now, and InvalidRequestError if it pins a
    worker that it does not allow.
    """
    eligible = candidates.eligible
    if pinned is not None:
        return _check_pin(pinned, eligible, allowed, busy)
    if allowed is not None:
        eligible = candidates.eligible = eligible & allowed
    if 1 not in eligible.tobytes():  # a twelfth of the time that eligible.any() takes
        raise NoWorkersError(_why_none(candidates.slots, allowed))
    if busy is not None:
        eligible = candidates.eligible = eligible & ~busy
        if not eligible.any():
            raise NoWorkersError("every worker is busy", overloaded=True)
    number = how(candidates, rng)
    eligible = candidates.eligible
    if not (0 <= number < len(eligible) and eligible[number]):
        raise RouterError(f"the strategy chose worker number {number}, which is not eligible")
    return number


def pick(costs: Floats, temperature: float, rng: Rng) -> int:
    """Draw a worker by cost: the lowest at temperature 0, by softmax of the scaled costs above it.

    p_i ~ exp(-(c_i - c_min) / ((c_max - c_min) * temperature)). Ties are uniform. One number is
    drawn from `rng` whatever the costs, so that a seed gives the same run. Costs that are not
    finite are out; NoWorkersError if none is left.
    """
    number = _cost.pick(costs, temperature, rng.random())
    if number < 0:
        raise NoWorkersError("no worker is left after filtering and scoring")
    return number


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


class PickInTurn:
    """The next worker by number after the one picked last, around the end."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, costs: Floats, rng: Rng) -> int:
        numbers = np.flatnonzero(np.isfinite(costs))
        if not len(numbers):
            return pick_lowest(costs, rng)
        turn = int(np.searchsorted(numbers, self._last, side="right")) % len(numbers)
        self._last = int(numbers[turn])
        return self._last


def score_equal(candidates: Candidates) -> Floats:
    """No preference."""
    return np.where(candidates.eligible, 0.0, np.inf)


def score_active_requests(candidates: Candidates) -> Floats:
    """Requests in flight."""
    return np.where(candidates.eligible, candidates.active_requests, np.inf)


def score_kv(params: CostParams) -> Score:
    """Dynamo's cost function with these weights."""
    needs_requests = params.decode_active_request_weight > 0

    def score_one(candidates: Candidates) -> Floats:
        return score(
            params,
            isl=candidates.isl,
            block_size=candidates.block_size,
            overlaps=candidates.overlaps,
            prefill_tokens=candidates.prefill_tokens,
            potential_blocks=candidates.potential_blocks,
            active_requests=candidates.active_requests if needs_requests else None,
            eligible=candidates.eligible,
            host_overlaps=candidates.host_overlaps,
            disk_overlaps=candidates.disk_overlaps,
        )

    return score_one


def _kv(params: CostParams, temperature: float) -> Strategy:
    def draw(costs: Floats, rng: Rng) -> int:
        return pick(costs, temperature, rng)

    return Strategy(score_kv(params), draw, needs_overlaps=True)


def _score_nothing(candidates: Candidates) -> Floats:
    raise InvalidRequestError(
        "in mode direct a request must name its worker", field="pinned_worker"
    )


_MODES: dict[str, Callable[[CostParams, float], Strategy]] = {
    "kv": _kv,
    "round-robin": lambda params, temperature: Strategy(score_equal, PickInTurn()),
    "random": lambda params, temperature: Strategy(score_equal, pick_lowest),
    "least-loaded": lambda params, temperature: Strategy(score_active_requests, pick_lowest),
    "power-of-two": lambda params, temperature: Strategy(score_active_requests, pick_of_two),
    "direct": lambda params, temperature: Strategy(_score_nothing, pick_lowest),
}


def _check_pin(pinned: int, eligible: Mask, allowed: Mask | None, busy: Mask | None) -> int:
    if not 0 <= pinned < len(eligible):
        raise ValueError(f"there is no worker number {pinned}")
    if allowed is not None and not allowed[pinned]:
        raise InvalidRequestError(
            "the pinned worker is not among the allowed ones", field="pinned_worker"
        )
    if not eligible[pinned]:
        raise NoWorkersError("the pinned worker takes no requests now")
    if busy is not None and busy[pinned]:
        raise NoWorkersError("the pinned worker is busy", overloaded=True)
    return pinned


def _why_none(slots: SlotTable, allowed: Mask | None) -> str:
    count = sum(slots.has_worker(number) for number in range(slots.capacity))
    if count == 0:
        return "no worker is registered"
    if allowed is not None:
        return f"none of the {int(allowed.sum())} allowed workers takes requests now"
    return f"none of the {count} registered workers takes requests now"
