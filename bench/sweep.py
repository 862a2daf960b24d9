"""dynamo-router sweep: tunes the router's knobs on a trace and writes a configuration for serve.

One knob after the other is tried at all its values while the others stay at their best, until a
round changes nothing. What was found is then compared with the start on seeds it has not seen.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from rich.table import Table

from ..base.errors import ConfigError
from ..process.setting_checks import require_at_least
from ..process.settings import bad_setting, option, options_of, resolve, values_of, with_value
from ..router.config import KvRouterConfig
from ..server.config import ServeConfig
from .evaluation import require_tunable
from .results import Column, Output, rows_table
from .simulation import (
    DEFAULT_WORKERS,
    Experiment,
    Load,
    PolicyVariant,
    SimulatedRun,
    SimulationConfig,
)

OBJECTIVES: Mapping[str, Callable[[SimulatedRun], float | None]] = {
    "ttft": lambda run: run.ttft_ms.mean,
    "ttft-p99": lambda run: run.ttft_ms.p99,
    "itl": lambda run: run.itl_ms.mean,
    "e2e": lambda run: run.e2e_ms.mean,
    "badput": lambda run: 1 - (run.goodput.absolute or 0.0),
    "goodput": lambda run: 1 - (run.goodput.relative or 0.0),
    "capacity": lambda run: 1 / max(run.capacity or 0.0, 1e-9),
}
BOTH = "ttft+e2e"
DEFAULT_KNOBS = (
    "prefill_load_scale=1,2,4,8,16,32,64",
    "decode_active_request_weight=0,1,4",
    "router_temperature=0,0.1",
)

Settings = Mapping[str, str]
"""Values of knobs as they were written on the command line; "none" where a knob may be unset."""


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """What to tune for what. Raises ConfigError, naming the key, on a bad value."""

    trace: str = field(metadata={"help": "The trace, a JSON lines file.", "positional": True})
    knobs: tuple[str, ...] = option(
        (),
        "A knob of serve and the values to try, NAME=VALUE,VALUE,...; may be repeated."
        f" Not given: {' '.join(DEFAULT_KNOBS)}.",
        "--knob",
    )
    objective: str = option(
        BOTH,
        "What to make small: latencies, the share of requests that miss the absolute (badput) or"
        " the relative objective (goodput), or the engines needed for a rate (capacity).",
        choices=(BOTH, *OBJECTIVES),
    )
    rounds: int = option(3, "Most passes over the knobs.")
    holdout_seeds: int = option(2, "Number of further seeds that check the best setting.")
    output: str | None = option(None, "Write the configuration, TOML for serve, to this file.")
    workers: int = option(DEFAULT_WORKERS, "How many engines there are.")
    requests: int | None = option(None, "Use only the trace's first N requests.")
    arrival_speedup: float = option(1.0, "Send at the trace's times divided by this.")
    max_output: int | None = option(None, "Ask for at most this many tokens a request.")
    trace_block_size: int | None = option(
        None,
        "Tokens that one hash id of the trace stands for; not given: as a record states, else 512.",
    )
    seed: int = option(0, "The first seed.")
    json: str | None = option(None, 'Write all trials as JSON to this file; "-" is stdout.')
    simulation: SimulationConfig = field(default_factory=SimulationConfig)

    def __post_init__(self) -> None:
        require_at_least(self, 1, "rounds", "workers")
        require_at_least(self, 0, "holdout_seeds")
        if self.objective not in (BOTH, *OBJECTIVES):
            known = ", ".join((BOTH, *OBJECTIVES))
            raise bad_setting("objective", f"{self.objective!r} is not one of {known}")
        if self.simulation.compare is not None:
            raise bad_setting("compare", "a sweep compares settings, not policies")
        if self.simulation.plot is not None:
            raise bad_setting("plot", "a sweep draws nothing")
        if self.simulation.roles.engines:
            raise bad_setting("prefill_workers", "a sweep has engines that run whole requests")
        Load.of(self)  # which checks the rest
        self.space()

    def space(self) -> dict[str, list[str]]:
        """Every knob's values, each checked by itself. ConfigError on what serve would refuse."""
        base, found = self.simulation.router(), dict[str, list[str]]()
        for text in self.knobs or DEFAULT_KNOBS:
            name, equals, values = text.partition("=")
            if not equals or not values or name in found:
                raise bad_setting("knobs", f"{text!r} is not NAME=VALUE,VALUE,... of a new NAME")
            found[name] = values.split(",")
            for value in found[name]:
                apply_settings(base, {name: value})
        return found


def apply_settings(base: KvRouterConfig, settings: Settings) -> KvRouterConfig:
    """A configuration with some knobs set, by their dotted names below [router]."""
    specs = {spec.key: spec for spec in options_of(KvRouterConfig)}
    for name, text in settings.items():
        if name not in specs:
            raise bad_setting("knobs", f"{name!r} is no setting of [router]")
        if text == "none" and specs[name].optional:
            value = None
        else:
            # `resolve` knows how to read each kind of value from text.
            flags = {f"router.{name}": text}
            value = values_of(resolve(ServeConfig, flags, environ={}).config.router)[name]
        base = with_value(base, name, value)
    return base


@dataclass(frozen=True)
class Trial:
    """Some settings and what came of them. `score`: lower is better, 1 is the start."""

    settings: Settings
    runs: Sequence[SimulatedRun]
    score: float

    @property
    def lost(self) -> int:
        """Requests that were turned away or failed."""
        return sum(run.errors + run.rejected for run in self.runs)


class Sweep:
    """Runs trials, each setting once, and finds the best."""

    def __init__(self, config: SweepConfig) -> None:
        self.config = config
        simulation = config.simulation
        if config.objective == "capacity":
            simulation = replace(simulation, search=replace(simulation.search, capacity=True))
        self._experiment = Experiment(simulation, Load.of(config), config.workers)
        require_tunable(config.trace, self._experiment.trace(config.seed).requests)
        self._base = replace(
            config.simulation.router(),
            block_size=config.simulation.block_size,
            active_request_expiry_secs=float("inf"),
        )
        self.trials: dict[KvRouterConfig, Trial] = {}

    def seeds(self, *, unseen: bool) -> range:
        first = self.config.seed + (self.config.simulation.seeds if unseen else 0)
        count = self.config.holdout_seeds if unseen else self.config.simulation.seeds
        return range(first, first + count)

    def search(self, on_trial: Callable[[Trial], None]) -> tuple[Trial, Trial]:
        """The start, and the best that was found."""
        start = best = self.try_out({}, on_trial)
        space = self.config.space()
        for _ in range(self.config.rounds):
            before = best
            for name, values in space.items():
                for value in values:
                    trial = self.try_out({**best.settings, name: value}, on_trial)
                    if (trial.lost, trial.score) < (best.lost, best.score):
                        best = trial
            if best is before:
                break
        return start, best

    def try_out(self, settings: Settings, on_trial: Callable[[Trial], None]) -> Trial:
        """What came of some settings; those that were tried before, in other words, are not."""
        config = apply_settings(self._base, settings)
        if config not in self.trials:
            runs = self.run_seeds(settings, self.seeds(unseen=False))
            start = self.trials[self._base].runs if self.trials else runs
            trial = self.trials[config] = Trial(settings, runs, self.score(runs, start))
            on_trial(trial)
        return self.trials[config]

    def run_seeds(self, settings: Settings, seeds: Iterable[int]) -> list[SimulatedRun]:
        config = apply_settings(self._base, settings)
        variant = PolicyVariant(config.mode, config.policy_name, config)
        return [self._experiment.run(variant, seed).run for seed in seeds]

    def score(self, runs: Sequence[SimulatedRun], start: Sequence[SimulatedRun]) -> float:
        """The objective against the start's; of both latencies, the mean of the two ratios."""
        parts = ("ttft", "e2e") if self.config.objective == BOTH else (self.config.objective,)
        return mean(_mean(OBJECTIVES[p], runs) / _mean(OBJECTIVES[p], start) for p in parts)


def _mean(value: Callable[[SimulatedRun], float | None], runs: Sequence[SimulatedRun]) -> float:
    known = [figure for run in runs if (figure := value(run)) is not None]
    # A perfect start leaves nothing to divide by; a policy that served no request is the worst.
    return max(mean(known), 1e-9) if known else float("inf")


def configuration(base: KvRouterConfig, settings: Settings, remarks: Sequence[str]) -> str:
    """A TOML file for serve: what differs from the defaults, and why in comments."""
    values, defaults = values_of(apply_settings(base, settings)), values_of(KvRouterConfig())
    tables: dict[str, list[str]] = {"router": []}
    for spec in options_of(KvRouterConfig):
        value = values[spec.key]
        if value is None or (value == defaults[spec.key] and spec.key not in settings):
            continue
        section, _, key = f"router.{spec.key}".rpartition(".")
        tables.setdefault(section, []).append(f"{key} = {_toml(value)}")
    lines = [f"# {remark}" for remark in remarks]
    for table, rows in tables.items():
        lines += ["", f"[{table}]", *rows]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def run(config: SweepConfig) -> int:
    """The command: 0; ConfigError for what cannot be read or written."""
    output = Output(config.json)
    if config.output is not None and not Path(config.output).resolve().parent.is_dir():
        raise bad_setting("output", f"{config.output}: the folder does not exist")
    sweep = Sweep(config)
    start, best = sweep.search(
        lambda trial: print(f"{_named(trial.settings)}: {trial.score:.4f}", file=sys.stderr)
    )
    unseen = sweep.seeds(unseen=True)
    checks = [sweep.run_seeds(trial.settings, unseen) for trial in (start, best)]
    on_unseen = sweep.score(checks[1], checks[0]) if unseen else None
    ranked = sorted(sweep.trials.values(), key=lambda trial: (trial.lost, trial.score))
    shown = [*ranked[:10], *([start] if start not in ranked[:10] else [])]
    title = f"{config.trace}: {config.objective}, {config.workers} engines"
    output.print(trials_table(shown, title))
    verdict = _verdict(best, on_unseen, unseen)
    output.print(verdict)
    base = replace(config.simulation.router(), block_size=config.simulation.block_size)
    if config.output is not None:
        remarks = [
            f"dynamo-router sweep on {Path(config.trace).name}: {config.objective},"
            f" {config.workers} engines of {config.simulation.num_gpu_blocks} blocks,"
            f" arrivals {config.arrival_speedup:g}x",
            verdict,
        ]
        try:
            Path(config.output).write_text(configuration(base, best.settings, remarks))
        except OSError as error:
            raise ConfigError(
                f"output: cannot write {config.output}: {error.strerror}", key="output"
            ) from None
        output.print(f"wrote {config.output}")
    content = {
        "best": dict(best.settings),
        "score": best.score,
        "holdout_score": on_unseen,
        "trials": [
            {
                "settings": dict(trial.settings),
                "score": trial.score,
                "lost": trial.lost,
                "ttft_ms": _mean(OBJECTIVES["ttft"], trial.runs),
                "e2e_ms": _mean(OBJECTIVES["e2e"], trial.runs),
                "goodput": {
                    "absolute": 1 - _mean(OBJECTIVES["badput"], trial.runs),
                    "relative": 1 - _mean(OBJECTIVES["goodput"], trial.runs),
                },
            }
            for trial in ranked
        ],
    }
    output.write(content)
    return 0


def trials_table(trials: Iterable[Trial], title: str) -> Table:
    """A row for each, in the order given: means over its seeds."""
    rows: list[dict[str, Any]] = [
        {key: _mean(value, trial.runs) for key, value in OBJECTIVES.items()}
        | {"score": trial.score, "lost": trial.lost, "settings": _named(trial.settings)}
        for trial in trials
    ]
    shares = [{**row, **{key: 1 - row[key] for key in ("badput", "goodput")}} for row in rows]
    columns = (
        Column("score", "score", 4),
        Column("TTFT ms", "ttft", 1),
        Column("p99", "ttft-p99", 0),
        Column("ITL ms", "itl", 2),
        Column("e2e ms", "e2e", 0),
        Column("goodput", "badput", 3),
        Column("relative", "goodput", 3),
        Column("lost", "lost", 0),
        Column("settings", "settings"),
    )
    return rows_table(shares, columns, title)


def _named(settings: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "(start)"


def _verdict(best: Trial, on_unseen: float | None, unseen: range) -> str:
    if not best.settings:
        return "nothing tried is better than the start"
    text = f"best: {_named(best.settings)}, {best.score:.3f} of the start"
    if on_unseen is not None:
        text += f"; {on_unseen:.3f} on {len(unseen)} further seeds"
        if on_unseen >= 1:
            text += ", where it is no better: the gain is chance"
    return text
