"""Constraints: from what a planner wants to what may be done now. A pure function, the last step.

Invariants: the accelerators of all workers, draining and failed ones among them, and those added
never exceed the budget; no role leaves its bounds by a step; what is removed was observed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..process.setting_checks import require_at_least, require_finite
from ..process.settings import bad_setting, option
from .fleet import ROLES, Fleet, Role
from .observation import Observation

KV_MARGIN = 1.1
"""Blocks kept for each block in use: the bound below which no removal takes the serving workers."""


class Change(NamedTuple):
    """What was done: when, in seconds of `Observation.at`'s clock, to which role, by how many."""

    at: float
    role: Role
    by: int


class Allowed(NamedTuple):
    """The fleet to go to now, and why it is not the one wanted."""

    fleet: Fleet
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Raises ConfigError, naming the key, on a bad value."""

    engines_max: int = option(
        8, "Budget: accelerators of all engines, starting and draining too.", short=True
    )
    engines_min: int = option(1, "Fewest engines of each role that is in use.", short=True)
    dwell_s: float = option(
        120.0, "Seconds after a role has grown in which none of its engines is removed."
    )
    removals_per_hour: int = option(
        30, "Most engines by which a role shrinks within an hour: those added then may go as well."
    )
    removals_at_once: int = option(1, "Most engines of a role that drain at a time.")
    aggregated_accelerators: int = option(1, "Accelerators of an engine for whole requests.")
    prefill_accelerators: int = option(1, "Accelerators of a prefill engine.")
    decode_accelerators: int = option(1, "Accelerators of a decode engine.")

    def __post_init__(self) -> None:
        accelerators = [f"{role}_accelerators" for role in ROLES]
        require_at_least(self, 1, "engines_max", "removals_at_once", *accelerators)
        require_at_least(self, 0, "engines_min", "removals_per_hour")
        require_finite(self, 0, "dwell_s")
        if self.engines_min > self.engines_max:
            text = f"{self.engines_min} engines are more than engines_max, {self.engines_max}"
            raise bad_setting("engines_min", text)

    @property
    def costs(self) -> dict[Role, int]:
        """Accelerators of an engine of each role."""
        return {role: getattr(self, f"{role}_accelerators") for role in ROLES}


def constrain(
    wanted: Fleet,
    seen: Observation,
    constraints: Constraints,
    changes: Sequence[Change] = (),
    *,
    may_remove: bool = True,
) -> Allowed:
    """The step from the workers seen towards `wanted` that may be taken now.

    Where there is budget, engines are added first, and others removed once the newcomers have
    served; at the budget, engines are removed first, and added when their accelerators are free.
    `changes` are the past ones; without `may_remove` nothing is removed, below no bound either.
    """
    present, reasons = seen.fleet(), list[str]()
    bounded = _within_bounds(wanted, constraints, reasons)
    ups: dict[Role, int] = {role: max(0, bounded.count(role) - count) for role, count in present}
    downs: dict[Role, int] = {role: max(0, count - bounded.count(role)) for role, count in present}
    free = constraints.engines_max - seen.held.cost(constraints.costs)
    needed = sum(by * constraints.costs.get(role, 1) for role, by in ups.items())
    over = present.cost(constraints.costs) > constraints.engines_max
    if any(ups.values()) and any(downs.values()) and free >= needed:
        reasons.append("newcomers have to serve before others are removed")
        downs = dict.fromkeys(ROLES, 0)
    added = present
    for role in ROLES:
        cost = constraints.costs.get(role, 1)
        by = min(ups[role], max(0, free) // cost)
        if by < ups[role]:
            reasons.append(f"budget: {ups[role] - by} more {role} wait for free accelerators")
        free -= by * cost
        added = added.changed(role, by)
    for role in ROLES:
        by = downs[role]
        if by and not may_remove and not over:
            reasons.append(f"no {role} engine is removed without a plan that holds")
            by = 0
        if by and not over:
            by = _removable(role, by, seen, constraints, changes, reasons)
        added = added.changed(role, -by)
    return Allowed(added, tuple(reasons))


def _within_bounds(wanted: Fleet, constraints: Constraints, reasons: list[str]) -> Fleet:
    """Every role in use has its fewest engines, and all together fit the budget."""
    # Whatever a formula asks for, it takes no longer than the budget is large.
    most = constraints.engines_max
    bounded = Fleet(*(min(count, most + 1) for _, count in wanted))
    for role, count in bounded:
        if 0 < count < constraints.engines_min:
            reasons.append(f"at least {constraints.engines_min} {role}")
            bounded = bounded.replaced(role, constraints.engines_min)
    if not bounded.engines and constraints.engines_min:
        reasons.append(f"at least {constraints.engines_min} aggregated")
        bounded = bounded.replaced("aggregated", constraints.engines_min)
    while bounded.cost(constraints.costs) > constraints.engines_max:
        # The largest role gives way, and a role in use keeps an engine as long as another can give.
        largest = max(ROLES, key=lambda role: bounded.count(role) * constraints.costs.get(role, 1))
        bounded = bounded.changed(largest, -1)
        text = f"budget: {constraints.engines_max} accelerators"
        if text not in reasons:
            reasons.append(text)
    return bounded


def _removable(
    role: Role,
    by: int,
    seen: Observation,
    constraints: Constraints,
    changes: Sequence[Change],
    reasons: list[str],
) -> int:
    """How many of `by` engines of a role may begin to drain now."""
    past = [change for change in changes if change.role == role]
    last = max((change.at for change in past if change.by > 0), default=-math.inf)
    if seen.at - last < constraints.dwell_s:
        reasons.append(f"dwell: {role} grew {seen.at - last:.0f} s ago")
        return 0
    grown = sum(change.by for change in past if seen.at - change.at < 3600)
    limits = {
        "rate limit": constraints.removals_per_hour + grown,
        "draining": constraints.removals_at_once - seen.fleet("draining").count(role),
        "KV cache in use": _spare_for_cache(role, seen),
        "not serving yet": _proven(role, seen),
    }
    for name, most in limits.items():
        if most < by:
            reasons.append(f"{name}: {max(0, most)} of {by} {role} removed")
            by = max(0, most)
    return by


def _spare_for_cache(role: Role, seen: Observation) -> int:
    """Serving engines without which the blocks in use still fit, with a margin."""
    serving = [each for each in seen.workers if each.role == role and each.state == "serving"]
    starting = sum(each.role == role and each.state == "starting" for each in seen.workers)
    used = [each.active_blocks for each in serving]
    sizes = [each.total_blocks for each in serving]
    known_used = [each for each in used if each is not None]
    known_sizes = [each for each in sizes if each]
    if len(known_used) < len(used) or len(known_sizes) < len(sizes) or not serving:
        return len(serving) + starting  # unknown: other limits decide
    need = math.ceil(sum(known_used) * KV_MARGIN / min(known_sizes))
    return starting + max(0, len(serving) - need)


def _proven(role: Role, seen: Observation) -> int:
    """Removable without taking the last serving engine while its successor is not routed to yet.

    Starting engines are removable always: they serve nothing.
    """
    workers = [each for each in seen.workers if each.role == role]
    starting = sum(each.state == "starting" for each in workers)
    serving = [each for each in workers if each.state == "serving"]
    fresh = sum(not each.served for each in serving)
    proven = len(serving) - fresh
    return starting + (len(serving) if not starting and not fresh else max(0, proven - 1) + fresh)
