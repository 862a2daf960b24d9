"""The arithmetic of the hostile benchmark: what one kind of peer did to the client that behaves."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from ...results import percentiles

PhaseName = Literal["quiet", "hostile", "control"]
PHASES: tuple[PhaseName, ...] = ("quiet", "hostile", "control")
GOAL_RATIO = 2.0
GOAL_FAILED = 0.01


class Sample(msgspec.Struct, frozen=True):
    """One request of the client: when it was sent, in seconds of the machine's monotonic clock;
    its time to the first token, or to its failure; the longest time between two tokens.
    """

    started: float
    ms: float
    gap_ms: float
    code: str


class Phase(NamedTuple):
    """What went on from when to when, by the same clock."""

    name: PhaseName
    began: float
    ended: float


class Figures(msgspec.Struct, frozen=True):
    """Of all phases of one name together. None where there was no request."""

    requests: int
    failed: int
    p50_ms: float | None
    p99_ms: float | None
    longest_gap_ms: float | None


class Cell(msgspec.Struct, frozen=True):
    """One kind of peer. Memory is the router's, in MiB: before, at most while the peer misbehaved,
    and at the end; CPU is in cores, while it misbehaved. `direct` is of a client that asks an
    engine itself meanwhile: what all wait for at the engines, and not at the router."""

    kind: str
    phases: dict[PhaseName, Figures]
    direct: dict[PhaseName, Figures]
    memory_mib: tuple[float, float, float]
    router_cpu: float
    peer_cpu: float

    @property
    def ratio(self) -> float:
        """p99 beside the peer over that without it: infinite if there is none beside it."""
        return self._over("quiet")

    @property
    def net_ratio(self) -> float:
        """The same over the worse of quiet and control: what is the router's doing, and not that
        of a machine that the peer's process shares with it."""
        return min(self._over("quiet"), self._over("control"))

    @property
    def meets_goal(self) -> bool:
        hostile = self.phases["hostile"]
        served = hostile.requests > 0 and hostile.failed <= GOAL_FAILED * hostile.requests
        return served and self.net_ratio <= GOAL_RATIO

    def _over(self, name: PhaseName) -> float:
        ours, theirs = self.phases["hostile"].p99_ms, self.phases[name].p99_ms
        if ours is None:
            return math.inf
        return ours / theirs if theirs else math.inf

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which knows no infinity."""
        ratios = {"ratio": self.ratio, "net_ratio": self.net_ratio}
        return {
            **msgspec.to_builtins(self),
            **{name: value if math.isfinite(value) else None for name, value in ratios.items()},
            "meets_goal": self.meets_goal,
        }


def figures_of(samples: Sequence[Sample], phases: Iterable[Phase], name: PhaseName) -> Figures:
    """What the requests that were sent in phases of this name came to."""
    spans = [(phase.began, phase.ended) for phase in phases if phase.name == name]
    within = [s for s in samples if any(began <= s.started < ended for began, ended in spans)]
    if not within:
        return Figures(0, 0, None, None, None)
    p50, p99 = percentiles([sample.ms for sample in within], 50, 99)
    return Figures(
        len(within),
        sum(sample.code != "OK" for sample in within),
        p50,
        p99,
        max(sample.gap_ms for sample in within),
    )


def worst_first(cells: Iterable[Cell]) -> list[Cell]:
    """By the net ratio; those whose client failed, before the others."""

    def badness(cell: Cell) -> tuple[bool, float]:
        hostile = cell.phases["hostile"]
        return hostile.failed > GOAL_FAILED * hostile.requests, cell.net_ratio

    return sorted(cells, key=badness, reverse=True)
