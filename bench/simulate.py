"""dynamo-router simulate: a trace in virtual time, engines and router included, by policies."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import NamedTuple

from rich.table import Table

from ..process.setting_checks import require_at_least
from ..process.settings import bad_setting, option
from .results import Output, format_number, new_table, prepare_plots, runs_content
from .simulation import (
    DEFAULT_COMPARE,
    DEFAULT_WORKERS,
    Load,
    Result,
    SimulatedRun,
    SimulationConfig,
    compare_policies,
    draw_comparison,
)


@dataclass(frozen=True, kw_only=True)
class SimulateConfig:
    """What to simulate. Raises ConfigError, naming the key, on a bad value."""

    trace: str = field(metadata={"help": "The trace, a JSON lines file.", "positional": True})
    workers: int | None = option(
        None,
        f"How many engines there are; not given: {DEFAULT_WORKERS}. With --prefill-workers and"
        " --decode-workers: how many more that run whole requests; not given: none.",
    )
    mode: str | None = option(None, "Simulate this policy alone, instead of --compare.")
    requests: int | None = option(None, "Use only the trace's first N requests.")
    arrival_speedup: float = option(
        1.0, "Let requests arrive at the trace's times divided by this."
    )
    max_output: int | None = option(None, "Ask for at most this many tokens a request.")
    trace_block_size: int | None = option(
        None,
        "Tokens that one hash id of the trace stands for; not given: as a record states, else 512.",
    )
    seed: int = option(0, "The first seed: of the prompts' content and of all that is random.")
    progress: bool = option(True, "Print a line to stderr after each run.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')
    simulation: SimulationConfig = field(default_factory=SimulationConfig)

    def __post_init__(self) -> None:
        require_at_least(self, 0 if self.simulation.roles.engines else 1, "workers")
        if self.mode is not None and self.simulation.compare is not None:
            raise bad_setting(
                "mode", "--mode names one policy, --compare several: give one of them"
            )
        self.load()  # which checks the rest

    def load(self) -> Load:
        """What is sent."""
        return Load.of(self)


def run(config: SimulateConfig) -> int:
    """The command: 0, or 1 if a policy served no request."""
    output = Output(config.json, width=210)  # a row is long, and worth more whole
    simulation, load = config.simulation, config.load()
    if simulation.plot is not None:
        prepare_plots(simulation.plot)
    drawn: list[Result] = []

    def on_result(result: Result) -> None:
        done = result.run
        if config.progress:
            text = f"{done.policy}, seed {done.seed}: {done.requests} requests"
            print(f"{text} in {result.cpu_s:.2f} s of CPU", file=sys.stderr)
        if simulation.plot is not None and done.seed == load.seed:
            drawn.append(result)

    runs = compare_policies(
        simulation,
        load,
        workers=config.workers or (0 if simulation.roles.engines else DEFAULT_WORKERS),
        names=simulation.compare or config.mode or DEFAULT_COMPARE,
        base=simulation.router(),
        on_result=on_result,
    )
    sent = f"{runs[0].requests} requests at {load.arrival_speedup:g}x"
    title = f"{load.trace}: {sent}, {runs[0].workers} engines"
    output.print(comparison_table(runs, title=title))
    output.print(_legend(simulation, runs[0]))
    for each in runs:
        if each.seed == load.seed and each.details["first_failure"]:
            output.print(f"{each.policy}: first failure: {each.details['first_failure']}")
    if simulation.plot is not None:
        for path in draw_comparison(simulation.plot, drawn):
            output.print(f"wrote {path}")
    output.write(runs_content(runs), timeless=True)
    return 1 if any(each.errors + each.rejected == each.requests for each in runs) else 0


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
    _Column("goodput", lambda run: run.goodput.absolute, 3),
    _Column("relative", lambda run: run.goodput.relative, 3),
    _Column("max/mean", lambda run: run.balance_max_over_mean, 2),
    _Column("waiting", lambda run: run.waiting_mean, 2),
    _Column("queued", lambda run: float(run.queued), 0),
    _Column("rejected", lambda run: float(run.rejected), 0),
    _Column("remote", lambda run: run.remote_prefill_share, 2),
    _Column("errors", lambda run: float(run.errors), 0),
)
_SEARCHED = (_Column("capacity/s", lambda run: run.capacity, 2),)


def comparison_table(runs: Sequence[SimulatedRun], title: str | None = None) -> Table:
    """A row per policy; over several seeds the mean, and how far half the range reaches from it."""
    table = new_table(title=title)
    table.add_column("policy", no_wrap=True)
    columns = [*_COLUMNS, *(_SEARCHED if any(run.capacity is not None for run in runs) else ())]
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    policies: dict[str, list[SimulatedRun]] = {}
    for run in runs:
        policies.setdefault(run.policy, []).append(run)
    for policy, group in policies.items():
        table.add_row(policy, *(_cell([c.value(run) for run in group], c.digits) for c in columns))
    return table


def _cell(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = format_number(mean(known), digits)
    half = (max(known) - min(known)) / 2
    return f"{middle} ±{format_number(half, digits)}" if len(known) > 1 and half else middle


def _legend(config: SimulationConfig, run: SimulatedRun) -> str:
    slo = config.objectives
    return (
        f"hit rate of one cache for all: {run.hit_rate_pooled_lru:.3f}, without end"
        f" {run.hit_rate_infinite:.3f}. goodput: TTFT within {slo.slo_ttft_ms:g} ms and mean"
        f" ITL within {slo.slo_itl_ms:g} ms. relative: TTFT within {slo.slo_relative_base_ms:g} ms"
        f" and {slo.slo_relative_factor:g} times the prompt's time on an idle engine with an empty"
        f" cache, mean ITL within {slo.slo_relative_itl_ms:g} ms. alone: the mean TTFT on idle"
        " engines, with the same hits. max/mean: prompt tokens per engine. waiting: requests not"
        " admitted, per engine. queued: requests that waited in the router."
    )
