"""The days of a grid, what is run of each, and how the planner's run is judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ...bench.traces import TRACE_BLOCK_SIZE, block_size_of, read_trace
from ...bench.traffic import SHAPES, TRAFFIC_BLOCK_SIZE, in_shape, shape_traffic
from ...engines.mocker import EngineConfig
from ..bounds import Needs
from ..comparison import PEERS, TUNED, Comparison, Setting, pareto, row
from ..constraints import Constraints
from ..day import DayRun, DayTrace, day_trace
from ..objectives import Objectives
from ..planning import PlanningConfig
from ..profile import Curves
from ..what_if import EngineModel

MOONCAKE = "mooncake"
DAYS = ("azure", MOONCAKE, "sinus", "step", "spike", "silence", "constant")
HITS = "hits"
"""The model error of prompts: the planner sees another day's, so that its caches hit otherwise."""
EXACT = "1"
RIVALS = ("static-peak", *(f"{name}{TUNED}" for name in PEERS))
BASE = ("bound-clairvoyant", "bound-reachable", *RIVALS)
"""What is run once for a day and a start-up: none of it depends on the planner's model."""
OF_DAY = ("bound-clairvoyant", "static-peak", f"static-peak{TUNED}", f"static-mean{TUNED}")
"""What no start-up changes: it is run once for a day."""
MOONCAKE_SPEED = 6.0
"""Engines of that day are as much faster, as its prompts are longer."""

Row = dict[str, Any]


class Cell(NamedTuple):
    """A day, seconds of start-up, and an error of the planner's model: a factor of its step times,
    or HITS."""

    day: str
    start_up_s: float
    error: str = EXACT

    def __str__(self) -> str:
        return f"{self.day}, {self.start_up_s:g} s, model {self.error}"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What all cells share."""

    trace: str | None
    requests: int
    rate: float
    engine_speed: float
    objectives: Objectives
    engines_max: int
    plan_budget_s: float
    seed: int

    def comparison(self, cell: Cell) -> Comparison:
        """The cell's day, and the one before."""
        comparison = self._comparison(cell)
        comparison.needs = self.needs(cell.day)
        return comparison

    @cache  # noqa: B019  # a process has one scene
    def needs(self, name: str) -> Needs:
        """Of a day: no start-up, and no error of the planner's model changes them."""
        return self._comparison(Cell(name, 1.0)).needs

    def _comparison(self, cell: Cell) -> Comparison:
        day, train = self.days(cell.day)
        speed = self.engine_speed * (MOONCAKE_SPEED if cell.day == MOONCAKE else 1.0)
        engine = EngineConfig(max_model_len=0)
        other = "sinus" if cell.day in ("azure", MOONCAKE) else "azure"
        setting = Setting(
            model=EngineModel(
                engine=engine,
                start_up_s=cell.start_up_s,
                speed=speed,
                trace_block_size=day.block_size,
            ),
            objectives=self.objectives,
            constraints=Constraints(engines_max=self.engines_max),
            planning=PlanningConfig(start_up_s=cell.start_up_s, plan_budget_s=self.plan_budget_s),
            curves=Curves.of_engine(engine, speed),
            model_error=1.0 if cell.error == HITS else float(cell.error),
            prompts=self.days(other)[0] if cell.error == HITS else None,
            seed=self.seed,
            counts_cpu=True,
        )
        return Comparison(setting, day, train)

    @cache  # noqa: B019  # a process has one scene
    def days(self, name: str) -> tuple[DayTrace, DayTrace]:
        """A day, and the one before. Mooncake's are a trace's halves, at a working day's hours."""
        if name in SHAPES:
            day, train = (
                day_trace(
                    shape_traffic(name, self.requests, rate=self.rate, seed=self.seed + later),
                    TRAFFIC_BLOCK_SIZE,
                )
                for later in (0, 1)
            )
            return day, train
        assert self.trace is not None
        size = block_size_of(self.trace, None) or TRACE_BLOCK_SIZE
        found = list(read_trace(self.trace, trace_block_size=size, limit=2 * self.requests))
        half = len(found) // 2
        later, earlier = (
            day_trace(in_shape("azure", part, rate=self.rate, seed=self.seed), size)
            for part in (found[half:], found[:half])
        )
        return later, earlier


def run_cell(scene: Scene, cell: Cell, names: Sequence[str]) -> list[Row]:
    """The figures of some policies in a cell, and the hours of its day."""
    comparison = scene.comparison(cell)
    found = [row(comparison.run(name)) for name in names]
    return [{**each, "hours": comparison.day.end_s / 3600} for each in found]


class Verdict(NamedTuple):
    """How the planner's run in a cell is judged. Ratios are of engine hours; None: no such row."""

    cell: Cell
    run: Row
    over_reachable: float | None
    over_peak: float | None
    on_front: bool | None
    beaten_by: str
    changes_per_hour: float
    lost: tuple[str, ...]

    @property
    def content(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "cell": self.cell._asdict()}


def judge(cell: Cell, run: Row, base: Mapping[str, Row], target: float) -> Verdict:
    """The planner's run beside the rows of its day and start-up, against the goals: the target,
    1.15 times the hours of the reachable bound, 0.75 of the static peak's on `sinus`, on the front
    of all tuned scalers, two changes an hour on `constant`, no stream cut, no time over budget."""
    hours = run["engine_hours"]

    def over(name: str) -> float | None:
        return hours / base[name]["engine_hours"] if name in base else None

    reachable, peak = over("bound-reachable"), over("static-peak")
    rivals = [_run_of(base[name]) for name in RIVALS if name in base]
    beaten = [each.policy for each in rivals if "plan" not in pareto([_run_of(run), each])]
    changes = run["changes"] / run["hours"]
    lost = []
    if run["attainment"] < target:
        lost.append("target")
    if reachable is not None and reachable > 1.15:
        lost.append("hours")
    if cell.day == "sinus" and peak is not None and peak > 0.75:
        lost.append("peak")
    if beaten:
        lost.append("front")
    if cell.day == "constant" and changes > 2:
        lost.append("changes")
    if run["aborted_streams"]:
        lost.append("streams")
    if run["over_budget_s"]:
        lost.append("budget")
    return Verdict(
        cell,
        run,
        reachable,
        peak,
        not beaten if len(rivals) == len(RIVALS) else None,
        ", ".join(beaten),
        changes,
        tuple(lost),
    )


def _run_of(figures: Row) -> DayRun:
    return DayRun(figures["policy"], figures["attainment"], figures["engine_hours"])
