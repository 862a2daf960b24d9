"""Several policies on one trace, in the same simulation. Called by replay without a target."""

import sys
from collections.abc import Callable, Sequence
from statistics import mean
from types import ModuleType
from typing import NamedTuple

from rich.table import Table

from ...router.config import KvRouterConfig
from ..results import (
    check_json_target,
    document,
    new_table,
    number,
    table_console,
    write_json,
)
from .config import DEFAULT_COMPARE, DEFAULT_WORKERS, SimulationConfig
from .experiment import Arena, Load, Result
from .outcome import SimulatedRun
from .policies import parse_contestants
from .prepared_trace import SimulatedTrace
from .simulation import Trail

OnResult = Callable[[Result], None]


def compare(
    config: SimulationConfig,
    load: Load,
    *,
    workers: int = DEFAULT_WORKERS,
    names: str = DEFAULT_COMPARE,
    base: KvRouterConfig | None = None,
    on_result: OnResult | None = None,
) -> list[SimulatedRun]:
    """Run every policy in `names` with every seed; the runs, by policy and then by seed.

    Raises ConfigError for a trace or a name that cannot be used, before anything is run.
    """
    contestants = parse_contestants(
        names, block_size=config.block_size, trace_block_size=load.trace_block_size, base=base
    )
    arena = Arena(config, load, workers)
    runs: dict[tuple[str, int], SimulatedRun] = {}
    for seed in range(load.seed, load.seed + config.seeds):
        for contestant in contestants:
            result = arena.run(contestant, seed)
            runs[contestant.policy, seed] = result.run
            if on_result is not None:
                on_result(result)
    return [runs[each.policy, load.seed + i] for each in contestants for i in range(config.seeds)]


class _Column(NamedTuple):
    title: str
    value: Callable[[SimulatedRun], float | None]
    digits: int


_COLUMNS = (
    _Column("hit rate", lambda run: run.cached_token_share, 3),
    _Column("of pooled", lambda run: run.hit_rate_vs_pooled_lru, 2),
    _Column("TTFT ms", lambda run: run.ttft_ms.mean, 1),
    _Column("alone", lambda run: run.alone_ms, 1),
    _Column("p50", lambda run: run.ttft_ms.p50, 0),
    _Column("p99", lambda run: run.ttft_ms.p99, 0),
    _Column("ITL ms", lambda run: run.itl_ms.mean, 2),
    _Column("e2e ms", lambda run: run.e2e_ms.mean, 0),
    _Column("goodput", lambda run: run.goodput_share, 3),
    _Column("max/mean", lambda run: run.balance_max_over_mean, 2),
    _Column("waiting", lambda run: run.waiting_mean, 2),
    _Column("queued", lambda run: float(run.queued), 0),
    _Column("rejected", lambda run: float(run.rejected), 0),
    _Column("errors", lambda run: float(run.errors), 0),
)


def comparison_table(runs: Sequence[SimulatedRun], title: str | None = None) -> Table:
    """A row per policy; over several seeds the mean, and how far half the range reaches from it."""
    table = new_table(title=title)
    table.add_column("policy", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column.title, justify="right", no_wrap=True)
    policies: dict[str, list[SimulatedRun]] = {}
    for run in runs:
        policies.setdefault(run.policy, []).append(run)
    for policy, group in policies.items():
        table.add_row(policy, *(_cell([c.value(run) for run in group], c.digits) for c in _COLUMNS))
    return table


def _cell(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = number(mean(known), digits)
    half = (max(known) - min(known)) / 2
    return f"{middle} ±{number(half, digits)}" if len(known) > 1 and half else middle


def run(
    config: SimulationConfig, load: Load, *, workers: int | None, mode: str | None, json: str | None
) -> int:
    """The command: 0, or 1 if a policy served nobody, or 130 on Ctrl-C."""
    check_json_target(json)
    workers = workers or DEFAULT_WORKERS
    plots = _plots(config.plot)
    drawn: list[tuple[SimulatedRun, Trail, SimulatedTrace]] = []

    def on_result(result: Result) -> None:
        done = result.run
        print(
            f"{done.policy}, seed {done.seed}: {done.requests} requests in {result.cpu_s:.2f} s"
            " of CPU",
            file=sys.stderr,
        )
        if plots is not None and done.seed == load.seed:
            drawn.append((done, result.trail, result.trace))

    try:
        runs = compare(
            config,
            load,
            workers=workers,
            names=config.compare or mode or DEFAULT_COMPARE,
            base=config.router(),
            on_result=on_result,
        )
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    console = table_console(json, width=210)  # a row is long, and worth more whole
    first = runs[0]
    console.print(
        comparison_table(
            runs,
            title=f"{load.trace}: {first.requests} requests at {load.arrival_speedup:g}x,"
            f" {workers} engines",
        )
    )
    console.print(_explain(config, first))
    for each in runs:
        if each.seed == load.seed and each.details["first_failure"]:
            console.print(f"{each.policy}: first failure: {each.details['first_failure']}")
    if plots is not None and config.plot is not None:
        for path in plots.draw(config.plot, drawn):
            console.print(f"wrote {path}")
    if json is not None:
        write_json(json, document(runs, timeless=True))
    return 1 if any(each.errors + each.rejected == each.requests for each in runs) else 0


def _explain(config: SimulationConfig, run: SimulatedRun) -> str:
    return (
        f"hit rate of one cache for all: {run.hit_rate_pooled_lru:.3f}, without end"
        f" {run.hit_rate_infinite:.3f}. goodput: TTFT within {config.slo_ttft_ms:g} ms and mean"
        f" ITL within {config.slo_itl_ms:g} ms. alone: the mean TTFT on idle engines, with the same"
        " hits. max/mean: prompt tokens per engine. waiting: requests not admitted, per engine."
        " queued: requests that waited in the router."
    )


def _plots(folder: str | None) -> ModuleType | None:
    """The module that draws, imported only where it is wanted: matplotlib is an extra."""
    if folder is None:
        return None
    from . import plots

    plots.prepare(folder)
    return plots
