"""dynamo-router bench grid: a policy against tuned baselines, in many fleets at once.

Every cell of the grid is a fleet: its size, arrivals, caches, how late and how incomplete its
events are, and perhaps something that the policy's model of it does not foresee. In each the policy
runs beside Dynamo's cost at several scales, and other baselines, with the same seeds.
The results are kept line by line, so that a grid that was interrupted goes on where it was.

Without a trace it is the evaluation: on traffic and fleets that nothing was tuned on.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ...process.setting_checks import require_at_least
from ...process.settings import bad_setting, option
from ...router.config import DYNAMO
from ..evaluation import (
    FIGURES,
    CellVerdict,
    EvaluationConfig,
    Figures,
    cells_table,
    evaluation_content,
    figures_of,
    judge_cell,
    run_evaluation,
)
from ..results import Output, require_matplotlib, settings_of
from ..simulation import CapacityConfig, Experiment, Load, SimulationConfig, parse_policies
from ..traces import TRACE_BLOCK_SIZE
from .grid_cells import MODEL_ERRORS, Cell, Kept, read_runs
from .grid_picture import draw_grid

BASE_WORKERS = 8
NO_ERROR = "none"
DEFAULT_SEEDS = 4


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """What to compare where. Raises ConfigError, naming the key, on a bad value."""

    trace: str | None = field(
        default=None,
        metadata={
            "help": "The trace, a JSON lines file; none with --report or --split.",
            "positional": True,
        },
    )
    out: str = option("grid.jsonl", "Keep every run's figures in this file, and go on from it.")
    policy: str = option("forecast", "The policy under test.")
    scales: str = option("1,2,4,8,16,32,64", "prefill_load_scale values of Dynamo's cost.")
    baselines: str = option(
        "dynamo:64+queue,lmetric,llm-d,preble", "Further baselines, as simulate --compare."
    )
    workers: str = option("4,8,16,32,64", "Fleet sizes; arrivals grow with them.")
    rates: str = option("0.5,1,2", "Arrivals, in parts of the trace's at --arrival-speedup.")
    caches: str = option("0.25,1,4", "Caches, in parts of --num-gpu-blocks.")
    delays_ms: str = option("0,10,100,1000", "Delays of events; at the middle of the others.")
    losses: str = option("0,0.01,0.1", "Shares of events lost; at the middle of the others.")
    model_errors: str = option(
        ",".join(MODEL_ERRORS),
        f"What the policies do not know of a fleet, at the middle of the others; {NO_ERROR}: none.",
    )
    capacity: bool = option(
        False, "Find the capacity as well: the highest rate at which 95 % meet the objective."
    )
    seeds: int | None = option(None, "Runs of each policy in each cell; not given: 4.")
    seed: int = option(0, "The first seed.")
    requests: int | None = option(None, "Only the trace's first N requests.")
    arrival_speedup: float = option(2.0, "How much faster the trace arrives at 8 workers.")
    num_gpu_blocks: int = option(8192, "KV-cache blocks of an engine.")
    block_size: int = option(64, "Tokens in a KV-cache block.")
    worker_speeds: str = option("1", "How fast each engine is, over and over.")
    report: bool = option(
        False,
        "Without a trace: how the policy does on the report's traffic, fleets and model errors,"
        " the worst first. With one: run nothing, show what is kept.",
    )
    evaluation: EvaluationConfig = field(
        default_factory=EvaluationConfig, metadata={"inline": True}
    )
    plot: str | None = option(None, "Draw the ratios into this PNG file.")
    json: str | None = option(None, 'Write the cells as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "seeds")
        if (self.trace is None) != (self.report or self.evaluation.split is not None):
            if self.trace is None:
                raise bad_setting("trace", "is needed, or --report, or --split")
            if self.evaluation.split is not None:
                raise bad_setting("split", "has traffic of its own: give no trace")
        for key in ("scales", "workers", "rates", "caches", "delays_ms", "losses"):
            if not all(value >= 0 for value in self.values(key)):
                raise bad_setting(key, f"{getattr(self, key)!r}: none may be negative")
        for key in ("workers", "rates", "caches"):
            if not all(value > 0 for value in self.values(key)):
                raise bad_setting(key, f"{getattr(self, key)!r}: all must be greater than 0")
        for name in self.names("model_errors"):
            if name not in MODEL_ERRORS:
                known = ", ".join((NO_ERROR, *MODEL_ERRORS))
                raise bad_setting("model_errors", f"{name!r} is none of {known}")

    def names(self, key: str) -> list[str]:
        """The names in a setting that lists them with commas; none where it says so, or nothing."""
        listed = [part.strip() for part in getattr(self, key).split(",")]
        return [name for name in listed if name and name != NO_ERROR]

    def values(self, key: str) -> list[float]:
        """The numbers in a setting that lists them with commas; ConfigError if it does not."""
        try:
            return [float(part) for part in getattr(self, key).split(",")]
        except ValueError:
            text = f"{getattr(self, key)!r} are no numbers with commas between them"
            raise bad_setting(key, text) from None


def cells(config: GridConfig) -> list[Cell]:
    """Sizes, rates and caches in all combinations; delays, losses and model errors at the base."""
    sizes = [
        Cell(int(workers), rate, cache, 0.0, 0.0)
        for workers, rate, cache in product(
            config.values("workers"), config.values("rates"), config.values("caches")
        )
    ]
    events = [
        Cell(BASE_WORKERS, 1.0, 1.0, delay, loss)
        for delay, loss in product(config.values("delays_ms"), config.values("losses"))
    ]
    base = Cell(BASE_WORKERS, 1.0, 1.0, 0.0, 0.0)
    errors = [base._replace(error=name) for name in config.names("model_errors")]
    return list(dict.fromkeys([*sizes, *events, *errors]))


def run_grid(config: GridConfig, kept: Kept) -> Iterator[tuple[Cell, str, int, Figures]]:
    """What is missing in `kept`, seed by seed, so that an interrupted grid has all cells."""
    scales = [f"{DYNAMO}:{scale:g}" for scale in config.values("scales")]
    names = [config.policy, *scales, *config.names("baselines")]
    seeds = range(config.seed, config.seed + (config.seeds or DEFAULT_SEEDS))
    for seed, cell in product(seeds, cells(config)):
        simulation = _simulation(config, cell)
        variants = parse_policies(
            ",".join(names),
            block_size=config.block_size,
            trace_block_size=TRACE_BLOCK_SIZE,
            base=simulation.router(),
        )
        wanted = {*FIGURES, *(("capacity",) if config.capacity else ())}
        missing = [v for v in variants if not wanted <= kept.get((cell, v.policy, seed), {}).keys()]
        if not missing:
            continue
        experiment = Experiment(simulation, _load(config, cell), cell.workers)
        for each in missing:
            yield cell, each.policy, seed, figures_of(experiment.run(each, seed).run)


def judge(kept: Kept, policy: str) -> list[CellVerdict[Cell]]:
    """A verdict, the worst first, on every cell in which the policy and a baseline have run."""
    by_cell: dict[Cell, dict[tuple[str, int], Figures]] = {}
    for (cell, name, seed), figures in kept.items():
        by_cell.setdefault(cell, {})[name, seed] = figures
    judged = (judge_cell(cell, policy, runs) for cell, runs in by_cell.items())
    return sorted((each for each in judged if each), key=lambda each: -each.behind)


def _simulation(config: GridConfig, cell: Cell) -> SimulationConfig:
    settings: dict[str, Any] = {
        "block_size": config.block_size,
        "num_gpu_blocks": max(1, round(config.num_gpu_blocks * cell.cache)),
        "worker_speeds": config.worker_speeds,
        "event_delay_ms": cell.delay_ms,
        "event_loss": cell.loss,
        "search": CapacityConfig(capacity=config.capacity),
    }
    return SimulationConfig(**{**settings, **MODEL_ERRORS.get(cell.error, {})})


def _load(config: GridConfig, cell: Cell) -> Load:
    assert config.trace is not None
    return Load(
        trace=config.trace,
        requests=config.requests,
        arrival_speedup=config.arrival_speedup * cell.rate * cell.workers / BASE_WORKERS,
    )


def run(config: GridConfig) -> int:
    """The command: 0, or 130 on Ctrl-C."""
    if config.trace is None:
        return run_evaluation(
            config.evaluation,
            policy=config.policy,
            seeds=config.seeds,
            requests=config.requests,
            capacity=config.capacity,
            json=config.json,
        )
    output = Output(config.json, width=200)
    if config.plot is not None:
        require_matplotlib()
    kept = read_runs(config.out)
    interrupted = False
    if not config.report:
        try:
            with open(config.out, "a", encoding="utf-8") as file:
                for cell, policy, seed, figures in run_grid(config, kept):
                    kept[cell, policy, seed] = figures
                    row = {"cell": cell, "policy": policy, "seed": seed, "figures": figures}
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    print(
                        f"{cell}; {policy}, seed {seed}: TTFT {figures['ttft']:.1f} ms",
                        file=sys.stderr,
                    )
        except OSError as error:
            raise bad_setting("out", f"cannot write {config.out}: {error.strerror}") from None
        except KeyboardInterrupt:
            print("interrupted: run it again to go on", file=sys.stderr)
            interrupted = True
    verdicts = judge(kept, config.policy)
    output.print(cells_table(verdicts, config.policy))
    if config.plot is not None and verdicts:
        output.print(f"wrote {draw_grid(config.plot, verdicts, config.policy)}")
    settings = {"benchmark": "grid", "config": settings_of(config)}
    output.write({**settings, **evaluation_content(verdicts)})
    return 130 if interrupted else 0
