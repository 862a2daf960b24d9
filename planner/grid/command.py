"""dynamo-router bench plan: the planner beside tuned scalers and bounds, on many days.

Each cell is a day, a start-up time and an error of the planner's model. Results are kept line by
line, so that a grid that was interrupted goes on where it was; what is kept is shown.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rich.table import Table

from ...base.errors import ConfigError
from ...bench.evaluation import obey_the_parent
from ...bench.results import Output, format_number, new_table, read_kept
from ...process.setting_checks import require_at_least, require_finite, require_positive
from ...process.settings import bad_setting, option
from ..objectives import Objectives
from .cells import (
    BASE,
    DAYS,
    EXACT,
    HITS,
    MOONCAKE,
    OF_DAY,
    Cell,
    Row,
    Scene,
    Verdict,
    judge,
    run_cell,
)

PLAN = ("plan",)


@dataclass(frozen=True, kw_only=True)
class PlanGridConfig:
    """Which cells to run. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "The grid"

    trace: str | None = option(
        None, f"Trace whose halves are the days of {MOONCAKE}; not given: that day is left out."
    )
    days: str = option(",".join(DAYS), "Days to run, with commas.")
    start_ups: str = option("120,30,300", "Seconds of start-up, with commas.")
    model_errors: str = option(
        f"{EXACT},0.8,1.25,{HITS}",
        f"Step times of the planner's model beside the true ones; {HITS}: another day's prompts.",
    )
    requests: int = option(5400, "Requests of a day.")
    rate: float = option(3.0, "Requests a second of a day, in the mean.")
    engine_speed: float = option(0.2, "How much faster engines are than mock engines' step times.")
    engines_max: int = option(24, "Budget of engines.")
    plan_budget_s: float = option(
        0.5, "CPU seconds that a plan may take, counted in simulated requests."
    )
    seed: int = option(0, "Of days, and of all that is random.")
    jobs: int = option(1, "Cells that are run at a time, each in a process.")
    limit_s: float | None = option(
        None,
        "Seconds after which no further cell is begun; 0: show what is kept. Not given: none.",
    )
    forget: str = option(
        "",
        "Policies whose figures are dropped from --out first, of the cells given, to be run again: "
        "`plan` once the planner is another one.",
    )
    out: str = option(
        "plan_grid.jsonl", "Keep every run's figures in this file, and go on from it."
    )
    json: str | None = option(None, 'Write the cells as JSON to this file; "-" is stdout.')
    objectives: Objectives = field(default_factory=Objectives, metadata={"inline": True})

    def __post_init__(self) -> None:
        require_at_least(self, 100, "requests")
        require_at_least(self, 1, "jobs", "engines_max")
        require_positive(self, "rate", "engine_speed", "plan_budget_s")
        require_finite(self, 0, "limit_s")
        for name in _parts(self.days):
            if name not in DAYS:
                raise bad_setting("days", f"{name!r} is none of {', '.join(DAYS)}")
        for name in _parts(self.forget):
            if name not in (*PLAN, *BASE):
                raise bad_setting("forget", f"{name!r} is none of {', '.join((*PLAN, *BASE))}")
        for key in ("start_ups", "model_errors"):
            for part in _parts(getattr(self, key)):
                if (key, part) != ("model_errors", HITS):
                    _number(key, part)
        if not self.cells:
            raise bad_setting("days", "there is no cell to run")

    @property
    def cells(self) -> list[Cell]:
        """In the order in which they are run: each round has every day once, and the start-ups and
        model errors are spread over the days, so that a part of the grid says something of all."""
        days = [day for day in _parts(self.days) if day != MOONCAKE or self.trace is not None]
        start_ups = [_number("start_ups", each) for each in _parts(self.start_ups)]
        errors = _parts(self.model_errors)
        return [
            Cell(
                day,
                start_ups[(place + turn) % len(start_ups)],
                errors[(place + turn // len(start_ups)) % len(errors)],
            )
            for turn in range(len(start_ups) * len(errors))
            for place, day in enumerate(days)
        ]

    @property
    def scene(self) -> Scene:
        return Scene(
            trace=self.trace,
            requests=self.requests,
            rate=self.rate,
            engine_speed=self.engine_speed,
            objectives=self.objectives,
            engines_max=self.engines_max,
            plan_budget_s=self.plan_budget_s,
            seed=self.seed,
        )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise bad_setting(key, f"{text!r} is no number above 0")
    return value


Kept = dict[Cell, dict[str, Row]]  # figures by policy


def read_runs(path: str) -> Kept:
    """The runs in a file; ConfigError if it has anything else. No file: none."""

    def parse(content: Any) -> tuple[Cell, dict[str, Row]]:
        return Cell(*content["cell"]), {str(each["policy"]): each for each in content["rows"]}

    kept: Kept = {}
    for cell, rows in read_kept(path, parse):
        kept.setdefault(cell, {}).update(rows)
    return kept


def base_of(kept: Kept, cell: Cell) -> dict[str, Row]:
    """What a cell is judged beside: of its day and start-up; what no start-up changes, of its
    day."""
    found = {
        name: rows[name]
        for other, rows in kept.items()
        if other.day == cell.day
        for name in OF_DAY
        if name in rows
    }
    return {**found, **kept.get(cell._replace(error=EXACT), {})}


def run(config: PlanGridConfig) -> int:
    """The command: 0, or ConfigError for a trace that cannot be used or a file not written."""
    output = Output(config.json, width=140)
    kept = read_runs(config.out)
    if config.forget:
        kept = _forget(config, kept)
    tasks = _tasks(config, kept)
    began = time.monotonic()
    if tasks and config.limit_s != 0:
        try:
            with open(config.out, "a", encoding="utf-8") as file:
                for cell, rows in _runs(config, tasks, began):
                    print(_kept_line(cell, rows), file=file, flush=True)
                    kept.setdefault(cell, {}).update({each["policy"]: each for each in rows})
                    print(f"{cell}: {', '.join(map(_line, rows))}", file=sys.stderr, flush=True)
        except OSError as error:
            raise ConfigError(f"out: cannot write {config.out}: {error}", key="out") from None
    verdicts = verdicts_of(config, kept)
    output.print(_table(verdicts))
    content = content_of(verdicts, len(config.cells))
    for text in content["summary"]:
        output.print(text)
    output.write({**content, "cells": [each.content for each in verdicts]})
    return 0


def _kept_line(cell: Cell, rows: Sequence[Row]) -> str:
    return json.dumps({"cell": cell, "rows": rows})


def _forget(config: PlanGridConfig, kept: Kept) -> Kept:
    """What is kept without the runs to be forgotten; the file is written anew."""
    forgotten, cells = _parts(config.forget), set(config.cells)
    left = {
        cell: {
            name: row for name, row in rows.items() if cell not in cells or name not in forgotten
        }
        for cell, rows in kept.items()
    }
    lines = [_kept_line(cell, [*rows.values()]) for cell, rows in left.items() if rows]
    try:
        written = f"{config.out}.new"
        with open(written, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(written, config.out)
    except OSError as error:
        raise ConfigError(f"out: cannot write {config.out}: {error}", key="out") from None
    return left


def _line(row: Row) -> str:
    return f"{row['policy']} {row['attainment']:.1%} {row['engine_hours']:.2f} h"


def _tasks(config: PlanGridConfig, kept: Kept) -> list[tuple[Cell, tuple[str, ...]]]:
    """What is not kept yet: the planner's runs, and what they are judged beside."""
    tasks, begun = [], list[Cell]()
    for cell in config.cells:
        base, known = cell._replace(error=EXACT), base_of(kept, cell)
        if base not in begun:
            of_day = any(each.day == cell.day for each in begun)
            rest = tuple(
                name for name in BASE if name not in known and not (of_day and name in OF_DAY)
            )
            tasks += [(base, rest)] if rest else []
            begun.append(base)
        if "plan" not in kept.get(cell, {}):
            tasks.append((cell, PLAN))
    return tasks


def _runs(
    config: PlanGridConfig, tasks: Sequence[tuple[Cell, tuple[str, ...]]], began: float
) -> Iterator[tuple[Cell, list[Row]]]:
    """What has ended, in the order of the ends."""

    def in_time() -> bool:
        return config.limit_s is None or time.monotonic() - began < config.limit_s

    if config.jobs == 1:
        for cell, names in tasks:
            if in_time():
                yield cell, run_cell(config.scene, cell, names)
        return
    context = multiprocessing.get_context("spawn")
    waiting = list(tasks)
    with ProcessPoolExecutor(config.jobs, context, obey_the_parent, (os.getpid(),)) as pool:
        running: dict[Future[list[Row]], Cell] = {}
        while waiting or running:
            while waiting and len(running) < config.jobs and in_time():
                cell, names = waiting.pop(0)
                running[pool.submit(run_cell, config.scene, cell, names)] = cell
            if not running:
                return
            ended = next(as_completed(running))
            yield running.pop(ended), ended.result()


def verdicts_of(config: PlanGridConfig, kept: Kept) -> list[Verdict]:
    """Of every cell whose run is kept, those with the most lost first."""
    found = []
    for cell in config.cells:
        run_ = kept.get(cell, {}).get("plan")
        base = base_of(kept, cell)
        if run_ is not None and all(name in base for name in BASE):
            found.append(judge(cell, run_, base, config.objectives.target))
    return sorted(found, key=lambda each: (-len(each.lost), each.run["attainment"]))


def content_of(verdicts: Sequence[Verdict], cells: int) -> dict[str, Any]:
    """How many cells keep which goal, as numbers and in words."""
    count = len(verdicts)
    goals = ("target", "hours", "peak", "front", "changes", "streams", "budget")
    lost = {goal: sum(goal in each.lost for each in verdicts) for goal in goals}
    of = {
        **dict.fromkeys(goals, count),
        "peak": sum(each.cell.day == "sinus" for each in verdicts),
        "changes": sum(each.cell.day == "constant" for each in verdicts),
    }
    words = [f"{count} of {cells} cells were run"]
    words += [f"{goal}: kept in {of[goal] - lost[goal]} of {of[goal]}" for goal in goals]
    return {"kept": {goal: [of[goal] - lost[goal], of[goal]] for goal in goals}, "summary": words}


def _table(verdicts: Sequence[Verdict]) -> Table:
    table = new_table(
        "day", "start-up", "model", "good", "worst 5 min", "hours", "of reachable", "of peak",
        "changes/h", "lost", "beaten by",
    )  # fmt: skip
    for each in verdicts:
        table.add_row(
            each.cell.day,
            f"{each.cell.start_up_s:g} s",
            each.cell.error,
            format_number(100 * each.run["attainment"], 1) + " %",
            format_number(each.run["worst_5_min"], 2),
            format_number(each.run["engine_hours"], 2),
            format_number(each.over_reachable, 2),
            format_number(each.over_peak, 2),
            format_number(each.changes_per_hour, 1),
            ", ".join(each.lost),
            each.beaten_by,
        )
    return table
