"""Fleets beside the present one: a few engines more or less of a role, roles changed, proposals."""

from collections.abc import Iterable
from typing import Literal

from .constraints import Constraints
from .fleet import ROLES, Fleet, Role

Roles = Literal["aggregated", "disaggregated", "both"]
ROLE_SETS: tuple[Roles, ...] = ("aggregated", "disaggregated", "both")


def roles_of(roles: Roles) -> tuple[Role, ...]:
    """The roles that engines may have."""
    if roles == "aggregated":
        return ("aggregated",)
    return ("prefill", "decode") if roles == "disaggregated" else ROLES


def is_possible(fleet: Fleet, roles: Roles, constraints: Constraints) -> bool:
    """Whether it fits budget and roles, and can answer: prefill and decode need each other."""
    allowed = roles_of(roles)
    if any(count and role not in allowed for role, count in fleet):
        return False
    if bool(fleet.prefill) != bool(fleet.decode):
        return False
    least = max(1, constraints.engines_min)
    if any(0 < count < least for _, count in fleet) or not fleet.engines:
        return False
    return fleet.cost(constraints.costs) <= constraints.engines_max


def neighbours(fleet: Fleet, roles: Roles, constraints: Constraints) -> list[Fleet]:
    """Possible fleets a step away: one engine more or less, one with another role, or a pair of
    prefill and decode engines for engines that run whole requests, and back."""
    allowed = roles_of(roles)
    found: set[Fleet] = set()
    for role in allowed:
        found |= {fleet.changed(role, 1), fleet.changed(role, -1)}
        for other in allowed:
            if other != role and fleet.count(role):
                found.add(fleet.changed(role, -1).changed(other, 1))
    if roles == "both":
        for whole in (1, 2):
            for by in (1, -1):
                paired = fleet.changed("prefill", by).changed("decode", by)
                found.add(paired.changed("aggregated", -by * whole))
    return ordered((each for each in found if each != fleet), roles, constraints)


def ordered(fleets: Iterable[Fleet], roles: Roles, constraints: Constraints) -> list[Fleet]:
    """Those that are possible, the cheapest first, each once."""
    possible = {each for each in fleets if is_possible(each, roles, constraints)}
    return sorted(possible, key=lambda each: (each.cost(constraints.costs), str(each)))
