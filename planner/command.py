"""dynamo-router plan: a day in minutes, under the planner, under others' rules, beside bounds."""

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import msgspec
from rich.table import Table

from ..base.errors import ConfigError
from ..bench.evaluation import obey_the_parent
from ..bench.results import Output, format_number, new_table
from ..bench.traces import TRACE_BLOCK_SIZE, TraceRequest, block_size_of, read_trace
from ..bench.traffic import SHAPES, TRAFFIC_BLOCK_SIZE, shape_traffic
from ..engines.mocker import EngineConfig
from ..process.setting_checks import require_at_least, require_positive
from ..process.settings import bad_setting, option
from .comparison import (
    BEST,
    POLICIES,
    Comparison,
    Setting,
    decisions_of,
    minutes_of,
    pareto,
    row,
)
from .constraints import Constraints
from .day import DayRun, DayTrace, day_trace
from .objectives import Objectives
from .page import write_page
from .planning import PlanningConfig
from .profile import Curves, read_curves
from .what_if import EngineModel

LEAST_REQUESTS = 50
"""A day of fewer has no rate."""
SHAPE_REQUESTS = 15_000


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """Mock engines, in what matters to a plan. ConfigError, naming the key, if out of range."""

    GROUP: ClassVar[str] = "Engines"

    block_size: int = option(64, "Tokens in a KV-cache block.")
    num_gpu_blocks: int = option(16384, "KV-cache blocks of an engine.")
    max_num_seqs: int = option(256, "Most requests running at once on an engine.")
    max_num_batched_tokens: int = option(8192, "Tokens computed in one step of an engine.")
    attention_us_per_ktoken2: float = option(
        0.0,
        "Microseconds that a step takes longer for each thousand prompt tokens and thousand tokens"
        " of context that they attend to; about 500 for a dense 8B model.",
    )
    planner_profile_data: str | None = option(
        None, "NPZ file of measured step times; not given: polynomials."
    )
    engine_speed: float = option(1.0, "How much faster engines are than those step times.")

    def engine(self) -> EngineConfig:
        """The settings of each engine."""
        return EngineConfig(
            block_size=self.block_size,
            num_gpu_blocks=self.num_gpu_blocks,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            attention_us_per_ktoken2=self.attention_us_per_ktoken2,
            planner_profile_data=self.planner_profile_data,
            max_model_len=0,
        )

    def __post_init__(self) -> None:
        require_positive(self, "engine_speed")
        self.engine()


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What to plan. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "The day"

    trace: str | None = field(
        default=None,
        metadata={"help": "The day, a JSON lines file; or --shape.", "positional": True},
    )
    shape: str | None = option(None, "Make a day of this shape.", choices=tuple(SHAPES))
    requests: int | None = option(
        None, f"Requests of the day; not given: all of a trace, {SHAPE_REQUESTS} of a shape."
    )
    rate: float = option(4.0, "Requests a second of a shape, in the mean.")
    train: str | None = option(
        None, "The day before, to tune on and to learn from; a shape makes its own."
    )
    trace_block_size: int | None = option(
        None,
        "Tokens that one hash id of the trace stands for; not given: as a record states, else 512.",
    )
    policies: str = option(",".join(POLICIES), "Policies to run, with commas.")
    model_error: float = option(
        1.0, "Step times of the planner's engine model, beside those that engines really have."
    )
    profile: tuple[str, ...] = option(
        (), "NPZ files of Dynamo's profiler, for its formulas; not given: the mock engine's curves."
    )
    seed: int = option(0, "Of the shape, and of all that is random.")
    jobs: int = option(1, "Policies that are run at a time, each in a process.")
    progress: bool = option(True, "Print a line to stderr after each policy.")
    output: str | None = option(None, "Write the day as a page to this file.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')
    objectives: Objectives = field(default_factory=Objectives, metadata={"inline": True})
    constraints: Constraints = field(default_factory=Constraints, metadata={"inline": True})
    planning: PlanningConfig = field(default_factory=PlanningConfig, metadata={"inline": True})
    engines: EngineChoice = field(default_factory=EngineChoice, metadata={"inline": True})

    def __post_init__(self) -> None:
        if (self.trace is None) == (self.shape is None):
            raise bad_setting("trace", "give a trace or --shape, one of them")
        if self.shape is not None and self.shape not in SHAPES:
            raise bad_setting("shape", f"{self.shape!r} is none of {', '.join(SHAPES)}")
        if self.shape is not None and self.train is not None:
            raise bad_setting("train", "a shape makes its own day to tune on")
        require_at_least(self, LEAST_REQUESTS, "requests")
        require_at_least(self, 1, "jobs")
        require_positive(self, "rate", "model_error")
        unknown = [name for name in self.names if name not in POLICIES]
        if unknown or not self.names:
            text = f"{', '.join(unknown) or 'nothing'} is none of {', '.join(POLICIES)}"
            raise bad_setting("policies", text)
        least = 2 if self.planning.roles == "disaggregated" else 1
        if self.constraints.engines_max < least * max(1, self.constraints.engines_min):
            raise bad_setting("engines_max", f"too few for {self.planning.roles} engines")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.policies.split(",") if name.strip())

    def comparison(self) -> Comparison:
        """The days, read or made. ConfigError, or TraceError, for one that cannot be used."""
        day, train = self._day(self.trace, 0), None
        if self.shape is not None:
            train = self._day(None, 1)
        elif self.train is not None:
            train = self._day(self.train, 0)
        engine = self.engines.engine()
        model = EngineModel(
            engine=engine,
            start_up_s=self.planning.start_up_s,
            speed=self.engines.engine_speed,
            trace_block_size=day.block_size,
        )
        curves = Curves.of_engine(engine, self.engines.engine_speed)
        if self.profile:
            curves = read_curves(self.profile)
        setting = Setting(
            model=model,
            objectives=self.objectives,
            constraints=self.constraints,
            planning=self.planning,
            curves=curves,
            model_error=self.model_error,
            seed=self.seed,
        )
        return Comparison(setting, day, train)

    def _day(self, path: str | None, later: int) -> DayTrace:
        if path is None:
            assert self.shape is not None
            count = self.requests or SHAPE_REQUESTS
            made = shape_traffic(self.shape, count, rate=self.rate, seed=self.seed + later)
            return day_trace(made, TRAFFIC_BLOCK_SIZE)
        size = block_size_of(path, self.trace_block_size) or TRACE_BLOCK_SIZE
        found = list(read_trace(path, trace_block_size=size, limit=self.requests))
        _check_day(found, path)
        return day_trace(found, size)


def _check_day(found: Sequence[TraceRequest], path: str) -> None:
    if len(found) < LEAST_REQUESTS:
        raise ConfigError(
            f"{path}: {len(found)} requests are no day: at least {LEAST_REQUESTS}", key="trace"
        )
    if found[-1].timestamp_ms <= found[0].timestamp_ms:
        raise ConfigError(f"{path}: all requests arrive at once: that is no day", key="trace")


def run(config: PlanConfig) -> int:
    """The command: 0, or ConfigError for a day that cannot be used or a page not written."""
    output = Output(config.json, width=130)
    target = None if config.output is None else Path(config.output)
    if target is not None and not target.absolute().parent.is_dir():
        raise ConfigError(f"output: cannot write {target}: no such folder", key="output")
    comparison = config.comparison()
    possible = comparison.policies()
    names = [name for name in config.names if name in possible]
    runs = []
    for each in _runs(config, comparison, names):
        runs.append(each)
        if config.progress:
            text = (
                f"{each.policy}: {each.attainment:.1%} good, {each.engine_hours:.2f} engine hours"
            )
            print(f"{text}, {each.cpu_s:.1f} s of CPU", file=sys.stderr)
    best = pareto(runs)
    title = f"{config.trace or config.shape}: {len(comparison.day.requests)} requests, "
    title += f"{comparison.day.end_s / 3600:.1f} h, start-up {config.planning.start_up_s:g} s"
    output.print(_table(runs, best, title))
    output.print(f"*: {BEST}")
    if len(names) < len(config.names):
        output.print("Nothing was tuned: --train gives a day to tune on.")
    if target is not None:
        target.write_text(write_page(title, comparison, runs, best), encoding="utf-8")
        output.print(f"wrote {target}")
    output.write(
        {
            "rows": [row(each) for each in runs],
            "pareto": best,
            "requests": len(comparison.day.requests),
            "hours": comparison.day.end_s / 3600,
            "minutes": minutes_of(comparison.day, runs),
            "decisions": {each.policy: msgspec.to_builtins(decisions_of(each)) for each in runs},
        },
        timeless=True,
    )
    return 0


def _runs(config: PlanConfig, comparison: Comparison, names: Sequence[str]) -> Iterator[DayRun]:
    """Each policy's run, in their order; in processes where several are run at a time."""
    if config.jobs == 1:
        yield from map(comparison.run, names)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        config.jobs, mp_context=context, initializer=_prepare, initargs=(config, os.getpid())
    ) as pool:
        yield from pool.map(_run_prepared, names)


_prepared: list[Comparison] = []


def _prepare(config: PlanConfig, parent: int) -> None:
    obey_the_parent(parent)
    _prepared[:] = [config.comparison()]


def _run_prepared(name: str) -> DayRun:
    return _prepared[0].run(name)


def _table(runs: Sequence[DayRun], best: Sequence[str], title: str) -> Table:
    table = new_table(
        "policy", "good", "engine hours", "changes", "aborted", "99 % minutes", "worst 5 min",
        "peak", "settings", title=title,
    )  # fmt: skip
    for each in runs:
        name = f"{each.policy} *" if each.policy in best else each.policy
        table.add_row(
            name,
            format_number(100 * each.attainment, 1) + " %",
            format_number(each.engine_hours, 2),
            str(each.changes),
            str(each.aborted_streams),
            format_number(each.good_minutes, 2),
            format_number(each.worst_5_min, 2),
            str(each.peak_engines),
            each.settings,
        )
    return table
