"""Which worker gets a request: who may, by pins, limits and masks, and then who does, by policy."""

import math
from typing import NamedTuple

import numpy as np

from ...base.errors import InvalidRequestError, NoWorkersError, RouterError
from ...slots.table import SlotTable
from .base import Candidates, Policy
from .draw import Rng, pick
from .dynamo_cost import Floats, Mask


class Preferred(NamedTuple):
    """A worker's number, and the part of its cost that it is let off: 0 to 1, or all."""

    number: int
    discount: float


def choose(
    policy: Policy,
    candidates: Candidates,
    rng: Rng,
    *,
    allowed: Mask | None = None,
    pinned: int | None = None,
    busy: Mask | None = None,
    avoided: Mask | None = None,
    temperature: float | None = None,
    preferred: Preferred | None = None,
) -> int:
    """The number of the worker that a request goes to.

    `allowed` are the workers the request accepts, None for all; `busy` are those that have all
    they can take; `avoided` are left alone if there are others. A `pinned` worker is not compared
    with others, only checked. A `temperature` takes the place of the policy's own pick. A
    `preferred` worker is chosen if it costs no more than the cheapest, once its discount is taken
    off, and at any cost if that is infinite. Raises NoWorkersError if no worker may take the
    request now, and InvalidRequestError if it pins a worker that it does not allow.
    """
    eligible = candidates.eligible
    if pinned is not None:
        _check_pin(pinned, policy, candidates, allowed, busy)
        return pinned
    if allowed is not None:
        eligible = candidates.eligible = eligible & allowed
    if 1 not in eligible.tobytes():  # a twelfth of the time that eligible.any() takes
        raise NoWorkersError(_why_none(candidates.slots, allowed))
    if busy is not None:
        if not (eligible & ~busy).any():
            raise all_busy(policy, eligible, candidates.now)
        eligible = candidates.eligible = eligible & ~busy
    if avoided is not None and (others := eligible & ~avoided).any():
        eligible = candidates.eligible = others
    if preferred is not None and _is_best(preferred, policy.score(candidates)):
        return preferred.number
    if temperature is None:
        number = policy.choose(candidates, rng)
    else:
        number = pick(policy.score(candidates), temperature, rng)
    if not (0 <= number < len(eligible) and eligible[number]):
        raise RouterError(f"the policy chose worker number {number}, which is not eligible")
    return number


def discounted(preferred: Preferred, costs: Floats) -> Floats:
    """The costs, with the preferred worker's less its discount."""
    costs = costs.copy()
    own = costs[preferred.number]
    if math.isfinite(own):
        costs[preferred.number] = own - preferred.discount * abs(own)
    return costs


def _is_best(preferred: Preferred, costs: Floats) -> bool:
    """Whether a preferred worker, where it may be chosen, is the cheapest or as cheap."""
    if preferred.discount == math.inf:
        return bool(math.isfinite(costs[preferred.number]))
    own = discounted(preferred, costs)[preferred.number]
    return bool(math.isfinite(own) and own <= costs.min())


def all_busy(
    policy: Policy, eligible: Mask, now: float, who: str = "every worker"
) -> NoWorkersError:
    """That none of these workers takes any more, and when one will by the policy's word."""
    seconds = policy.relief_s(eligible, now)
    return NoWorkersError(f"{who} is busy", overloaded=True, retry_after_s=seconds)


def _check_pin(
    pinned: int, policy: Policy, candidates: Candidates, allowed: Mask | None, busy: Mask | None
) -> None:
    eligible = candidates.eligible
    if not 0 <= pinned < len(eligible):
        raise ValueError(f"there is no worker number {pinned}")
    if allowed is not None and not allowed[pinned]:
        raise InvalidRequestError(
            "the pinned worker is not among the allowed ones", field="pinned_worker"
        )
    if not eligible[pinned]:
        raise NoWorkersError("the pinned worker takes no requests now")
    if busy is not None and busy[pinned]:
        only = np.zeros_like(eligible)
        only[pinned] = True
        raise all_busy(policy, only, candidates.now, "the pinned worker")


def _why_none(slots: SlotTable, allowed: Mask | None) -> str:
    count = sum(slots.has_worker(number) for number in range(slots.capacity))
    if count == 0:
        return "no worker is registered"
    if allowed is not None:
        return f"none of the {int(allowed.sum())} allowed workers takes requests now"
    return f"none of the {count} registered workers takes requests now"
