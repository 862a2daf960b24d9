"""Fleet: how many engines of which role. What a planner wants, allows and sees are such counts."""

from collections.abc import Iterator, Mapping
from typing import Literal, Self, get_args

import msgspec

Role = Literal["aggregated", "prefill", "decode"]
ROLES: tuple[Role, ...] = get_args(Role)
"""`aggregated` engines run whole requests; `prefill` engines compute prompts for `decode` ones."""


class Fleet(msgspec.Struct, frozen=True, omit_defaults=True):
    """Engines by role. Raises ValueError for a count below 0; equal counts are equal fleets."""

    aggregated: int = 0
    prefill: int = 0
    decode: int = 0

    def __post_init__(self) -> None:
        for role, count in self:
            if count < 0:
                raise ValueError(f"a fleet cannot have {count} {role} engines")

    def __iter__(self) -> Iterator[tuple[Role, int]]:
        return ((role, getattr(self, role)) for role in ROLES)

    def __str__(self) -> str:
        return ", ".join(f"{count} {role}" for role, count in self if count) or "no engines"

    @property
    def engines(self) -> int:
        return self.aggregated + self.prefill + self.decode

    def count(self, role: Role) -> int:
        found: int = getattr(self, role)
        return found

    def cost(self, costs: Mapping[Role, int]) -> int:
        """Accelerators: engines times what one of their role takes, 1 where `costs` has no role."""
        return sum(count * costs.get(role, 1) for role, count in self)

    def changed(self, role: Role, by: int) -> Self:
        """With `by` more engines of a role, of which there are never less than 0."""
        return self.replaced(role, max(0, self.count(role) + by))

    def replaced(self, role: Role, count: int) -> Self:
        """With this many engines of a role."""
        return msgspec.structs.replace(self, **{role: count})

    def lowest(self, other: "Fleet") -> Self:
        """The smaller count of each role."""
        return type(self)(*(min(count, other.count(role)) for role, count in self))

    def highest(self, other: "Fleet") -> Self:
        """The larger count of each role."""
        return type(self)(*(max(count, other.count(role)) for role, count in self))
