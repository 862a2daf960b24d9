"""The goals of the index benchmark, and whether a run met them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...results import figure_of

Row = Mapping[str, Any]
Results = Mapping[str, Sequence[Row]]
SETTING = ("block_size", "workers", "phase", "kind", "blocks", "held_by", "contender")
"""What distinguishes the rows of a part."""


@dataclass(frozen=True)
class Goal:
    """A figure to reach in each row of a part that is as in `where`.

    With `over`, the figure counts by its ratio to that of the row that differs in this alone.
    """

    name: str
    goal: float
    unit: str
    part: str
    key: str
    where: Row
    over: Row | None = None
    at_most: bool = False
    stretch: float | None = None

    def measured(self, rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
        """The figure of each setting that was measured."""
        for row in rows:
            value = figure_of(row, self.key)
            if value is None or not _is_as(row, self.where):
                continue
            if self.over is not None:
                beside = {key: row.get(key) for key in SETTING} | dict(self.over)
                bases = [figure_of(each, self.key) for each in rows if _is_as(each, beside)]
                if not bases:
                    continue
                value /= bases[0]
            yield _setting(row), value


def judge(results: Results) -> list[dict[str, Any]]:
    """Each goal with what was measured: `met` or not; a part that did not run is left out."""
    return [
        {
            "name": goal.name,
            "setting": setting,
            "measured": value,
            "goal": goal.goal,
            "stretch": goal.stretch,
            "at_most": goal.at_most,
            "unit": goal.unit,
            "met": value <= goal.goal if goal.at_most else value >= goal.goal,
        }
        for goal in GOALS
        for setting, value in goal.measured(results.get(goal.part, ()))
    ]


def _is_as(row: Row, where: Row) -> bool:
    return all(row.get(key) == value for key, value in where.items())


def _setting(row: Row) -> str:
    block = [f"block {row['block_size']}"] if "block_size" in row else []
    kinds = [kind for kind in ("blocks", "workers") if row.get("kind", "workers") == kind]
    return ", ".join([*block, *(f"{row[kind]:,} {kind}" for kind in kinds if kind in row)])


def _phase(phase: str, name: str) -> Row:
    return {"phase": phase, "contender": name}


def _size(kind: str, size: int, held_by: str | None = None) -> Row:
    return {"kind": kind, kind: size, "held_by": held_by, "contender": "arrays"}


PEER = {"contender": "dynamo"}
STORED, P50, P99 = "blocks_per_s", "p50_us", "p99_us"
GOALS = (
    Goal("store, arrays", 6, "x peer", "phases", STORED, _phase("store", "arrays"), PEER,
         stretch=10),
    Goal("store, the peer's JSON", 2.5, "x peer", "phases", STORED, _phase("store", "events"),
         PEER),
    Goal("match p50, arrays", 2, "us", "phases", P50, _phase("match", "arrays"), at_most=True),
    Goal("match p99, arrays", 8, "us", "phases", P99, _phase("match", "arrays"), at_most=True),
    Goal("match, list in, dict out", 3, "x peer", "phases", STORED, _phase("match", "lists"), PEER),
    Goal("remove, arrays", 6, "x peer", "phases", STORED, _phase("remove", "arrays"), PEER),
    Goal("memory of an entry", 32, "B", "memory", "bytes_per_entry", {"contender": "arrays"},
         at_most=True),
    Goal("mixed, drained, one writer", 20e6, "block ops/s", "drained", STORED, {}),
    Goal("through NATS, stored blocks", 1.5e6, "blocks/s", "events", "stored_per_s",
         {"load": "all"}),
    Goal("through NATS, lag p99 at 100 k blocks/s", 5, "ms", "events", "lag_p99_ms",
         {"load": "steady"}, at_most=True),
    Goal("match p50, blocks over 500,000", 3, "x", "growth", "match_p50_us",
         _size("blocks", 50_000_000), {"blocks": 500_000}, at_most=True),
    Goal("match p50, workers over 64, few hold a prompt", 3, "x", "growth", "match_p50_us",
         _size("workers", 4096, "few"), {"workers": 64}, at_most=True),
    Goal("match p50, workers over 64, all hold a prompt", 3, "x", "growth", "match_p50_us",
         _size("workers", 4096, "all"), {"workers": 64}, at_most=True),
)  # fmt: skip
