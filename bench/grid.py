"""dynamo-router bench grid: a policy against Dynamo's cost, tuned, in many fleets at once.

Every cell of the grid is a fleet: its size, arrivals, caches, and how late and how incomplete its
events are. In each the policy runs beside Dynamo's cost at several scales, with the same seeds.
The results are kept line by line, so that a grid that was interrupted goes on where it was.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from rich.table import Table

from ..runtime.errors import ConfigError
from ..runtime.settings import bad_setting, option
from .results import Output, format_number, new_table, require_matplotlib, save_figure
from .simulation import Experiment, Load, SimulationConfig, parse_policies
from .traces import TRACE_BLOCK_SIZE

BASE_WORKERS = 8
FIGURES = ("ttft", "ttft_p99", "e2e", "hit_rate", "of_pooled", "balance", "rejected", "errors")


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """What to compare where. Raises ConfigError, naming the key, on a bad value."""

    trace: str = field(metadata={"help": "The trace, a JSON lines file.", "positional": True})
    out: str = option("grid.jsonl", "Keep every run's figures in this file, and go on from it.")
    policy: str = option("forecast", "The policy under test.")
    scales: str = option("1,2,4,8,16,32,64", "prefill_load_scale values of Dynamo's cost.")
    workers: str = option("4,8,16,32,64", "Fleet sizes; arrivals grow with them.")
    rates: str = option("0.5,1,2", "Arrivals, in parts of the trace's at --arrival-speedup.")
    caches: str = option("0.25,1,4", "Caches, in parts of --num-gpu-blocks.")
    delays_ms: str = option("0,10,100,1000", "Delays of events; at the middle of the others.")
    losses: str = option("0,0.01,0.1", "Shares of events lost; at the middle of the others.")
    seeds: int = option(4, "Runs of each policy in each cell.")
    seed: int = option(0, "The first seed.")
    requests: int | None = option(None, "Only the trace's first N requests.")
    arrival_speedup: float = option(2.0, "How much faster the trace arrives at 8 workers.")
    num_gpu_blocks: int = option(8192, "KV-cache blocks of an engine.")
    block_size: int = option(64, "Tokens in a KV-cache block.")
    worker_speeds: str = option("1", "How fast each engine is, over and over.")
    report: bool = option(False, "Run nothing: show what is kept.")
    plot: str | None = option(None, "Draw the ratios into this PNG file.")
    json: str | None = option(None, 'Write the cells as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise bad_setting("seeds", f"{self.seeds} must be at least 1")
        for key in ("scales", "workers", "rates", "caches", "delays_ms", "losses"):
            if not all(value >= 0 for value in self.values(key)):
                raise bad_setting(key, f"{getattr(self, key)!r}: none may be negative")
        for key in ("workers", "rates", "caches"):
            if not all(value > 0 for value in self.values(key)):
                raise bad_setting(key, f"{getattr(self, key)!r}: all must be greater than 0")

    def values(self, key: str) -> list[float]:
        """The numbers in a setting that lists them with commas; ConfigError if it does not."""
        try:
            return [float(part) for part in getattr(self, key).split(",")]
        except ValueError:
            text = f"{getattr(self, key)!r} are no numbers with commas between them"
            raise bad_setting(key, text) from None


class Cell(NamedTuple):
    """A fleet. `rate` and `cache` are parts of the base's."""

    workers: int
    rate: float
    cache: float
    delay_ms: float
    loss: float

    def __str__(self) -> str:
        text = f"{self.workers} workers, rate {self.rate:g}, cache {self.cache:g}"
        if self.delay_ms or self.loss:
            text += f", events {self.delay_ms:g} ms late, {self.loss:.0%} lost"
        return text


Figures = dict[str, float]
Kept = dict[tuple[Cell, str, int], Figures]  # by cell, policy, seed


def cells(config: GridConfig) -> list[Cell]:
    """Sizes, rates and caches in all combinations; delays and losses at the base."""
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
    return list(dict.fromkeys([*sizes, *events]))


def read_kept(path: str) -> Kept:
    """The runs in a file; ConfigError if it has anything else. No file: none."""
    kept: Kept = {}
    if not Path(path).exists():
        return kept
    for place, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            kept[Cell(*row["cell"]), row["policy"], row["seed"]] = row["figures"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"out: {path}, line {place} is no run of a grid", key="out") from None
    return kept


def run_grid(config: GridConfig, kept: Kept) -> Iterator[tuple[Cell, str, int, Figures]]:
    """What is missing in `kept`, seed by seed, so that an interrupted grid has all cells."""
    names = [config.policy, *(f"dynamo:{scale:g}" for scale in config.values("scales"))]
    for seed, cell in product(range(config.seed, config.seed + config.seeds), cells(config)):
        variants = parse_policies(
            ",".join(names), block_size=config.block_size, trace_block_size=TRACE_BLOCK_SIZE
        )
        missing = [each for each in variants if (cell, each.policy, seed) not in kept]
        if not missing:
            continue
        experiment = Experiment(_simulation(config, cell), _load(config, cell), cell.workers)
        for each in missing:
            run = experiment.run(each, seed).run
            figures = (
                run.ttft_ms.mean,
                run.ttft_ms.p99,
                run.e2e_ms.mean,
                run.cached_token_share,
                run.hit_rate_vs_pooled_lru,
                run.balance_max_over_mean,
                run.rejected,
                run.errors,
            )
            yield (
                cell,
                each.policy,
                seed,
                {key: float(value or 0.0) for key, value in zip(FIGURES, figures, strict=True)},
            )


def _simulation(config: GridConfig, cell: Cell) -> SimulationConfig:
    return SimulationConfig(
        block_size=config.block_size,
        num_gpu_blocks=max(1, round(config.num_gpu_blocks * cell.cache)),
        worker_speeds=config.worker_speeds,
        event_delay_ms=cell.delay_ms,
        event_loss=cell.loss,
    )


def _load(config: GridConfig, cell: Cell) -> Load:
    return Load(
        trace=config.trace,
        requests=config.requests,
        arrival_speedup=config.arrival_speedup * cell.rate * cell.workers / BASE_WORKERS,
    )


@dataclass(frozen=True)
class CellResult:
    """A cell's verdict. Ratios are the policy's mean over the best mean of any scale."""

    cell: Cell
    seeds: int
    ttft_ms: float
    ttft_spread_ms: float  # half the range over the seeds
    best_ttft_ms: float  # of Dynamo's cost, at the scale that suits TTFT best
    best_scale: str
    ttft_ratio: float
    ttft_p99_ratio: float
    e2e_ratio: float
    of_pooled: float  # hit rate against one LRU cache for all
    best_of_pooled: float  # the best of Dynamo's cost at any scale
    balance: float  # most over mean of the prompt tokens per worker
    best_balance: float
    failed: float  # requests rejected or failed


def judge(kept: Kept, policy: str) -> list[CellResult]:
    """A verdict for every cell in which the policy and Dynamo's cost have run with the same seeds.

    A scale counts if it ran with all the seeds that the policy ran with.
    """
    results = []
    for cell in dict.fromkeys(cell for cell, _, _ in kept):
        runs: dict[str, dict[int, Figures]] = {}
        for (where, name, seed), figures in kept.items():
            if where == cell:
                runs.setdefault(name, {})[seed] = figures
        mine = runs.pop(policy, None)
        rivals = {
            name: [by_seed[seed] for seed in mine]
            for name, by_seed in runs.items()
            if mine is not None and name.startswith("dynamo:") and mine.keys() <= by_seed.keys()
        }
        if mine is not None and rivals:
            results.append(_judge_cell(cell, list(mine.values()), rivals))
    return results


def _judge_cell(
    cell: Cell, mine: Sequence[Figures], rivals: dict[str, list[Figures]]
) -> CellResult:
    def own(key: str) -> float:
        return mean(run[key] for run in mine)

    def best(key: str, pick: Any = min) -> float:
        return float(pick(mean(run[key] for run in runs) for runs in rivals.values()))

    ttfts = [run["ttft"] for run in mine]
    best_scale = min(rivals, key=lambda name: mean(run["ttft"] for run in rivals[name]))
    return CellResult(
        cell=cell,
        seeds=len(mine),
        ttft_ms=own("ttft"),
        ttft_spread_ms=(max(ttfts) - min(ttfts)) / 2,
        best_ttft_ms=best("ttft"),
        best_scale=best_scale,
        ttft_ratio=own("ttft") / best("ttft"),
        ttft_p99_ratio=own("ttft_p99") / best("ttft_p99"),
        e2e_ratio=own("e2e") / best("e2e"),
        of_pooled=own("of_pooled"),
        best_of_pooled=best("of_pooled", max),
        balance=own("balance"),
        best_balance=best("balance"),
        failed=own("rejected") + own("errors"),
    )


def grid_table(results: Sequence[CellResult], policy: str) -> Table:
    """A row per cell; ratios below 1 are the policy's gain."""
    table = new_table(title=f"{policy} against the best scale of Dynamo's cost, figure by figure")
    headings = ("cell", "TTFT ms", "Dynamo", "at", "ratio", "p99", "e2e", "pooled", "Dynamo")
    for heading in (*headings, "max/mean", "Dynamo", "failed", "seeds"):
        table.add_column(heading, justify="left" if heading == "cell" else "right", no_wrap=True)
    for each in results:
        table.add_row(
            str(each.cell),
            f"{format_number(each.ttft_ms, 1)} ±{format_number(each.ttft_spread_ms, 1)}",
            format_number(each.best_ttft_ms, 1),
            each.best_scale.partition(":")[2],
            format_number(each.ttft_ratio, 3),
            format_number(each.ttft_p99_ratio, 3),
            format_number(each.e2e_ratio, 3),
            format_number(each.of_pooled, 2),
            format_number(each.best_of_pooled, 2),
            format_number(each.balance, 2),
            format_number(each.best_balance, 2),
            format_number(each.failed, 0),
            str(each.seeds),
        )
    return table


# What a row of the figure shows, and how far from 1 its colours reach.
_MAPS = (
    ("ttft_ratio", "TTFT, mean", 0.12),
    ("ttft_p99_ratio", "TTFT, 99th percentile", 0.12),
    ("e2e_ratio", "End to end, mean", 0.12),
)


def draw_grid(path: str, results: Sequence[CellResult], policy: str) -> Path:
    """Ratios over fleet size, arrivals and caches; blue is the policy's gain. The path written."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    plain = [each for each in results if not each.cell.delay_ms and not each.cell.loss]
    sizes = sorted({each.cell.workers for each in plain})
    columns = sorted({(each.cell.cache, each.cell.rate) for each in plain})
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(max(6.0, 1.2 + 0.95 * len(columns)), 2.8 * len(_MAPS)), dpi=120)
        figure.set_layout_engine("constrained")
        for axes, (key, title, reach) in zip(
            figure.subplots(len(_MAPS), 1, squeeze=False)[:, 0], _MAPS, strict=True
        ):
            axes.set_title(f"{title}: {policy} over the best scale of Dynamo's cost", loc="left")
            axes.set_xlim(-0.5, len(columns) - 0.5)
            axes.set_ylim(-0.5, len(sizes) - 0.5)
            for each in plain:
                x = columns.index((each.cell.cache, each.cell.rate))
                y = sizes.index(each.cell.workers)
                ratio = getattr(each, key)
                shade = min(1.0, max(0.0, 0.5 + (ratio - 1) / (2 * reach)))
                colour = matplotlib.colormaps["RdBu_r"](shade)
                axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour))
                dark = abs(shade - 0.5) > 0.33
                axes.text(
                    x,
                    y,
                    f"{ratio:.3f}",
                    ha="center",
                    va="center",
                    color="white" if dark else "black",
                )
            axes.set_xticks(
                range(len(columns)),
                [f"cache {cache:g}\nrate {rate:g}" for cache, rate in columns],
            )
            axes.set_yticks(range(len(sizes)), [f"{size} workers" for size in sizes])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        return save_figure(figure, path)


def run(config: GridConfig) -> int:
    """The command: 0, or 130 on Ctrl-C."""
    output = Output(config.json, width=180)
    if config.plot is not None:
        require_matplotlib()
    kept = read_kept(config.out)
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
    results = judge(kept, config.policy)
    output.print(grid_table(results, config.policy))
    if config.plot is not None and results:
        output.print(f"wrote {draw_grid(config.plot, results, config.policy)}")
    content = {
        "benchmark": "grid",
        "config": asdict(replace(config, json=None)),
        "cells": [{**asdict(each), "cell": each.cell._asdict()} for each in results],
    }
    output.write(content)
    return 130 if interrupted else 0
