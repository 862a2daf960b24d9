"""The policies of mode kv by name: ours, and those that installed packages or callers bring.

A policy is a function from the router's settings to a Strategy. A package offers one under its
entry point group `dynamo_router.policies`; examples/custom_policy.py shows both ways to use it.
Called by kv_router.py and bench/contestants.py.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from operator import index
from typing import Any

import numpy as np

from ..runtime.errors import ConfigError, RouterError
from ..workers.registry import WorkerEntry
from .config import DYNAMO, FORECAST, KvRouterConfig
from .policy import (
    Candidates,
    Counts,
    Hold,
    Mask,
    Observer,
    Rng,
    Strategy,
    forecast_strategy,
    strategy,
)

GROUP = "dynamo_router.policies"
LOG_EVERY = 1000  # failures of a policy between two lines in the log

Policy = Callable[[KvRouterConfig], Strategy]
log = logging.getLogger(__name__)


def known_policies() -> list[str]:
    """What `policy` can be: ours first, then those of installed packages by name."""
    others = sorted({point.name for point in entry_points(group=GROUP)})
    return [FORECAST, DYNAMO, f"{DYNAMO}:SCALE", *others]


def new_strategy(config: KvRouterConfig) -> Strategy:
    """A strategy for these settings, to be kept by one router.

    Raises ConfigError for a policy that nobody offers, or that cannot be made.
    """
    if config.mode != "kv":
        return strategy(config.mode)
    name = config.policy_name
    if name == FORECAST:
        return forecast_strategy(config.router_temperature)
    if name.partition(":")[0] == DYNAMO:
        return strategy("kv", config.cost_params(), config.router_temperature)
    for point in entry_points(group=GROUP):
        if point.name == name:
            return guarded(_load(point, config), name, config)
    raise ConfigError(f"policy: {name!r} is none of {', '.join(known_policies())}", key="policy")


def guarded(how: Strategy, name: str, config: KvRouterConfig) -> Strategy:
    """A strategy that somebody else wrote, with ours to fall back on: see GuardedStrategy."""
    failures = Failures(name)
    observer = None if how.observer is None else _GuardedObserver(how.observer, failures)
    hold = None if how.hold is None else _GuardedHold(how.hold, failures)
    return GuardedStrategy(
        how.score,
        how.pick,
        how.filter,
        needs_overlaps=how.needs_overlaps,
        observer=observer,
        explain=how.explain,
        hold=hold,
        failures=failures,
        fallback=strategy("kv", config.cost_params(), config.router_temperature),
    )


@dataclass
class Failures:
    """How often a policy failed, and the last reason."""

    policy: str
    count: int = 0
    last: str = ""

    def note(self, reason: str) -> None:
        self.count += 1
        self.last = reason
        if self.count % LOG_EVERY == 1:
            log.error(
                "policy %r failed, %d times so far; Dynamo's cost decides in its place: %s",
                self.policy,
                self.count,
                reason,
            )


@dataclass(frozen=True, kw_only=True)
class GuardedStrategy(Strategy):
    """Where the policy raises, or chooses a worker that may not be chosen, Dynamo's cost decides.

    A request is not lost for it. It is counted in `failures` and logged. What the policy refuses
    with one of the router's own errors, such as NoWorkersError, is refused.
    """

    failures: Failures
    fallback: Strategy

    def __call__(self, candidates: Candidates, rng: Rng) -> int:
        before = candidates.eligible
        try:
            if self.filter is not None:
                candidates.eligible = candidates.eligible & self.filter(candidates)
            eligible = candidates.eligible
            costs = np.ascontiguousarray(self.score(candidates), np.float64)
            if costs.shape != eligible.shape:
                raise ValueError(f"costs of shape {costs.shape} for {len(eligible)} workers")
            if np.isnan(costs[eligible]).any():
                raise ValueError("a cost is not a number")
            number = index(self.pick(costs, rng))
            if not 0 <= number < len(eligible) or not eligible[number]:
                raise ValueError(f"it chose worker number {number}, which is not eligible")
            return number
        except RouterError:
            raise
        except Exception as error:
            self.failures.note(f"{type(error).__name__}: {error}")
        candidates.eligible = before
        return self.fallback(candidates, rng)


class _GuardedObserver:
    """An observer whose errors are logged and counted, and go no further."""

    def __init__(self, inner: Observer, failures: Failures) -> None:
        self._inner = inner
        self._failures = failures

    def on_worker(self, number: int, entry: WorkerEntry) -> None:
        self._tell("on_worker", number, entry)

    def on_worker_gone(self, number: int) -> None:
        self._tell("on_worker_gone", number)

    def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
        self._tell("on_booked", request_id, number, candidates)

    def on_first_token(self, request_id: str, now: float) -> None:
        self._tell("on_first_token", request_id, now)

    def on_end(self, request_id: str, now: float, output_tokens: int | None) -> None:
        self._tell("on_end", request_id, now, output_tokens)

    def _tell(self, what: str, *facts: Any) -> None:
        try:
            getattr(self._inner, what)(*facts)
        except Exception as error:
            self._failures.note(f"{what}: {type(error).__name__}: {error}")


class _GuardedHold:
    """A hold whose errors and nonsense are logged and counted, and hold nobody up."""

    def __init__(self, inner: Hold, failures: Failures) -> None:
        self._inner = inner
        self._failures = failures

    def room_in(self, eligible: Mask, active_blocks: Counts, now: float) -> float:
        return self._ask("room_in", eligible, active_blocks, now)

    def patience(self, uncached_tokens: int) -> float:
        return self._ask("patience", uncached_tokens)

    def _ask(self, what: str, *facts: Any) -> float:
        try:
            seconds = float(getattr(self._inner, what)(*facts))
            if math.isnan(seconds):
                raise ValueError("it is not a number")
            return seconds
        except Exception as error:
            self._failures.note(f"{what}: {type(error).__name__}: {error}")
            return 0.0


def _load(point: EntryPoint, config: KvRouterConfig) -> Strategy:
    try:
        made = point.load()(config)
    except Exception as error:
        raise ConfigError(
            f"policy: {point.name!r} ({point.value}) cannot be made: "
            f"{type(error).__name__}: {error}",
            key="policy",
        ) from error
    if not isinstance(made, Strategy):
        raise ConfigError(
            f"policy: {point.name!r} ({point.value}) made {made!r}, which is no Strategy",
            key="policy",
        )
    return made
