"""The goals of the index benchmark, and whether a run met them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Sequence[Mapping[str, Any]]]
PEER = "dynamo"


@dataclass(frozen=True)
class Goal:
    """One figure to reach. `measure` gives it for every setting that was measured."""

    name: str
    goal: float
    unit: str
    measure: Callable[[Results], list[tuple[str, float]]]
    at_most: bool = False
    stretch: float | None = None


def judge(results: Results) -> list[dict[str, Any]]:
    """Each goal with what was measured: `met` or not; a part that did not run is left out."""
    judged = []
    for goal in GOALS:
        for setting, value in goal.measure(results):
            met = value <= goal.goal if goal.at_most else value >= goal.goal
            judged.append(
                {
                    "name": goal.name,
                    "setting": setting,
                    "measured": value,
                    "goal": goal.goal,
                    "stretch": goal.stretch,
                    "at_most": goal.at_most,
                    "unit": goal.unit,
                    "met": met,
                }
            )
    return judged


def _times_peer(phase: str, index: str) -> Callable[[Results], list[tuple[str, float]]]:
    """How many times the peer's blocks/s."""

    def measure(results: Results) -> list[tuple[str, float]]:
        rates = {
            (row["block_size"], row["workers"], row["contender"]): row["blocks_per_s"]["median"]
            for row in results.get("phases", ())
            if row["phase"] == phase
        }
        return [
            (f"block {block}, {workers} workers", rate / rates[block, workers, PEER])
            for (block, workers, name), rate in rates.items()
            if name == index and (block, workers, PEER) in rates
        ]

    return measure


def _figure(
    part: str, key: str, wanted: Mapping[str, Any] | None = None
) -> Callable[[Results], list[tuple[str, float]]]:
    """A figure of the rows that are as wanted."""

    def measure(results: Results) -> list[tuple[str, float]]:
        found = []
        for row in results.get(part, ()):
            if key in row and all(row.get(name) == value for name, value in (wanted or {}).items()):
                value = row[key]
                setting = ", ".join(
                    f"{label} {row[name]}" if label == "block" else f"{row[name]} {label}"
                    for name, label in (("block_size", "block"), ("workers", "workers"))
                    if name in row
                )
                found.append((setting, value["median"] if isinstance(value, Mapping) else value))
        return found

    return measure


def _growth(
    kind: str, small: int, large: int, held_by: str | None = None
) -> Callable[[Results], list[tuple[str, float]]]:
    """Match p50 at the large size over that at the small one."""

    def measure(results: Results) -> list[tuple[str, float]]:
        p50 = {
            row[kind]: row["match_p50_us"]["median"]
            for row in results.get("growth", ())
            if (row["kind"], row["contender"], row.get("held_by")) == (kind, "arrays", held_by)
        }
        if small not in p50 or large not in p50:
            return []
        return [(f"{large:,} over {small:,}", p50[large] / p50[small])]

    return measure


GOALS = (
    Goal("store, arrays", 6, "x peer", _times_peer("store", "arrays"), stretch=10),
    Goal("store, the peer's JSON", 2.5, "x peer", _times_peer("store", "events")),
    Goal("match p50, arrays", 2, "us",
         _figure("phases", "p50_us", {"phase": "match", "contender": "arrays"}), at_most=True),
    Goal("match p99, arrays", 8, "us",
         _figure("phases", "p99_us", {"phase": "match", "contender": "arrays"}), at_most=True),
    Goal("match, list in, dict out", 3, "x peer", _times_peer("match", "lists")),
    Goal("remove, arrays", 6, "x peer", _times_peer("remove", "arrays")),
    Goal("memory of an entry", 32, "B",
         _figure("memory", "bytes_per_entry", {"contender": "arrays"}), at_most=True),
    Goal("mixed, drained, one writer", 20e6, "block ops/s", _figure("drained", "blocks_per_s")),
    Goal("through NATS, stored blocks", 1.5e6, "blocks/s",
         _figure("events", "stored_per_s", {"load": "all"})),
    Goal("through NATS, lag p99 at 100 k blocks/s", 5, "ms",
         _figure("events", "lag_p99_ms", {"load": "steady"}), at_most=True),
    Goal("match p50, blocks", 3, "x", _growth("blocks", 500_000, 50_000_000), at_most=True),
    Goal("match p50, workers, few hold a prompt", 3, "x",
         _growth("workers", 64, 4096, "few"), at_most=True),
    Goal("match p50, workers, all hold a prompt", 3, "x",
         _growth("workers", 64, 4096, "all"), at_most=True),
)  # fmt: skip
