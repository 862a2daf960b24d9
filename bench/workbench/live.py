"""dynamo-router bench live: the same traffic through real processes and through the simulation.

A router and mock engines as processes, over gRPC and NATS, beside virtual ones: what the evaluation
says of a policy holds for the router that serves as far as these agree. Runs of the modes take
turns, so that what else the machine does meets all of them.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.table import Table

from ...engines.mocker import TierConfig
from ...process.setting_checks import require_at_least, require_positive
from ...process.settings import bad_setting, option
from ..evaluation import REPORT, SPLIT_NAMES, Condition, flooded_traffic, split_of
from ..load import ServeProcess, mock_fleet_arguments
from ..replay import ReplayConfig, new_loop, replay
from ..results import Column, ObjectiveConfig, Output, Run, format_number, rows_table
from ..simulation import Experiment, Load, SimulationConfig
from ..traces import encode_request
from ..traffic import TRAFFIC_BLOCK_SIZE, generate_traffic

# What is compared; latencies in ms of engines at their own speed.
FIGURES: Mapping[str, Callable[[Run], float | None]] = {
    "TTFT mean ms": lambda run: run.ttft_ms.mean,
    "end to end mean ms": lambda run: run.e2e_ms.mean,
    "ITL mean ms": lambda run: run.itl_ms.mean,
    "cached token share": lambda run: run.cached_token_share,
    "goodput, relative": lambda run: run.goodput.relative,
}
TIMES = ("TTFT mean ms", "end to end mean ms", "ITL mean ms")


@dataclass(frozen=True, kw_only=True)
class LiveConfig:
    """What to run. Raises ConfigError, naming the key, on a bad value."""

    split: str = option(REPORT, "Whose traffic.", choices=SPLIT_NAMES)
    family: str = option("conversation", "Which family of it.")
    condition: str | None = option(
        None, "What the engines or their load have beside, of the split: see bench grid."
    )
    modes: tuple[str, ...] = option(
        ("round-robin", "kv"), "Modes of the router, in turn; may be repeated.", flag="--mode"
    )
    workers: int = option(4, "Mock engines.")
    num_gpu_blocks: int = option(3584, "KV-cache blocks of each engine.")
    load: float = option(0.5, "Arrivals, in parts of the family's rate, or of the condition's.")
    requests: int = option(150, "Requests of a run.")
    rounds: int = option(2, "Runs of each mode, each with another seed.")
    slowdown: float = option(
        4.0,
        "Slow-down of engines and arrivals, so that delays of the machine matter less.",
    )
    tolerance: float = option(0.05, "How far live and simulated means may be apart, as a share.")
    start_timeout_s: float = option(
        60.0, "Wait this long for the router and its engines.", flag="--start-timeout"
    )
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "workers", "num_gpu_blocks", "requests", "rounds")
        require_positive(self, "load", "slowdown", "tolerance", "start_timeout_s")
        if self.family not in split_of(self.split).traffic:
            known = ", ".join(split_of(self.split).traffic)
            raise bad_setting("family", f"{self.family!r} is none of {known}")
        conditions = split_of(self.split).conditions
        fitting = [name for name, families in conditions.items() if self.family in families]
        if self.condition is not None and self.condition not in fitting:
            known = f"one of {', '.join(fitting)}" if fitting else "one that it has"
            text = f"{self.condition!r} is not {known}, with {self.family}"
            raise bad_setting("condition", text)

    @property
    def conditions(self) -> Condition:
        """What is beside."""
        if self.condition is None:
            return Condition()
        return split_of(self.split).conditions[self.condition][self.family]

    @property
    def blocks(self) -> int:
        """KV-cache blocks of each engine."""
        return self.conditions.num_gpu_blocks or self.num_gpu_blocks

    def simulation(self) -> SimulationConfig:
        """The same engines, simulated; objectives stretched as the engines are."""
        usual = ObjectiveConfig()
        stretched = {key: value * self.slowdown for key, value in asdict(usual).items()}
        return SimulationConfig(
            block_size=TRAFFIC_BLOCK_SIZE,
            num_gpu_blocks=self.blocks,
            tiers=self.conditions.tiers or TierConfig(),
            worker_speeds=str(1 / self.slowdown),
            objectives=ObjectiveConfig(**stretched),
        )


class Agreement(NamedTuple):
    """A figure's means of one mode, over the rounds; `low` and `high` are the live runs'."""

    mode: str
    figure: str
    simulated: float
    live: float
    low: float
    high: float

    @property
    def apart(self) -> float:
        """The live mean over the simulated one, less 1."""
        return self.live / self.simulated - 1 if self.simulated else self.live


def write_traffic(config: LiveConfig, place: int, folder: Path) -> Path:
    """The traffic of one round as a trace."""
    split = split_of(config.split)
    spec, condition = split.traffic[config.family], config.conditions
    make = generate_traffic if condition.others is None else flooded_traffic
    made = make(
        spec,
        config.requests,
        rate=spec.rate * config.workers * config.load * condition.load,
        seed=split.seeds[place % len(split.seeds)] + 1000 * (place // len(split.seeds)),
        first_id=split.first_id,
    )
    path = folder / f"{config.family}-{place}.jsonl"
    path.write_bytes(b"".join(map(encode_request, made)))
    return path


def simulate(config: LiveConfig, mode: str, trace: Path, seed: int) -> Run:
    """The round in virtual time."""
    load = Load(
        trace=str(trace),
        trace_block_size=TRAFFIC_BLOCK_SIZE,
        arrival_speedup=1 / config.slowdown,
        seed=seed,
    )
    experiment = Experiment(config.simulation(), load, config.workers)
    (variant,) = experiment.variants(mode)
    return experiment.run(variant, seed).run


async def run_live(config: LiveConfig, mode: str, trace: Path, seed: int) -> Run:
    """The round with processes, which have seen nothing before and end with it."""
    arguments = mock_fleet_arguments(
        mode,
        workers=config.workers,
        block_size=TRAFFIC_BLOCK_SIZE,
        num_gpu_blocks=config.blocks,
        speedup_ratio=1 / config.slowdown,
        tiers=config.conditions.tiers,
    )
    serving = ServeProcess(
        arguments, workers=config.workers, start_timeout_s=config.start_timeout_s
    )
    async with serving:
        load = ReplayConfig(
            trace=str(trace),
            target=serving.grpc_address,
            trace_block_size=TRAFFIC_BLOCK_SIZE,
            arrival_speedup=1 / config.slowdown,
            seed=seed,
            workers=config.workers,
            simulation=SimulationConfig(objectives=config.simulation().objectives),
        )
        return await replay(load)


class Pair(NamedTuple):
    """The same round of a mode, simulated and live."""

    mode: str
    simulated: Run
    live: Run


async def measure(config: LiveConfig) -> list[Pair]:
    """Round by round; the modes of a round follow one another."""
    found = []
    with TemporaryDirectory() as folder:
        for place in range(config.rounds):
            trace = write_traffic(config, place, Path(folder))
            for mode in config.modes:
                virtual = simulate(config, mode, trace, place)
                live = await run_live(config, mode, trace, place)
                found.append(Pair(mode, virtual, live))
                print(f"{mode}, round {place + 1} of {config.rounds}: done", file=sys.stderr)
    return found


def agreements(runs: Sequence[Pair], slowdown: float = 1.0) -> list[Agreement]:
    """Every figure of every mode; times as they were without the slow-down."""
    found = []
    for mode in dict.fromkeys(each.mode for each in runs):
        for name, value in FIGURES.items():
            scale = slowdown if name in TIMES else 1.0
            pairs = [each for each in runs if each.mode == mode]
            virtual = [(value(each.simulated) or 0.0) / scale for each in pairs]
            live = [(value(each.live) or 0.0) / scale for each in pairs]
            found.append(Agreement(mode, name, mean(virtual), mean(live), min(live), max(live)))
    return found


def agreement_table(found: Sequence[Agreement], title: str) -> Table:
    """A row for each mode and figure."""
    rows = []
    for each in found:
        digits = 1 if each.figure in TIMES else 3
        simulated, live, low, high = (format_number(value, digits) for value in each[2:])
        figures = {"simulated": simulated, "live": live, "runs": f"{low} to {high}"}
        rows.append({"mode": each.mode, "figure": each.figure, "apart": each.apart, **figures})
    columns = (
        Column("mode", "mode"),
        Column("figure", "figure"),
        Column("simulated", "simulated"),
        Column("live", "live"),
        Column("live runs", "runs"),
        Column("apart", "apart", lambda share: f"{share:+.1%}"),
    )
    return rows_table(rows, columns, title)


def run(config: LiveConfig) -> int:
    """The command: 0; 1 if they are too far apart, or a request failed."""
    output = Output(config.json)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runs = runner.run(measure(config))
    found = agreements(runs, config.slowdown)
    failed = sum(each.live.errors + each.live.rejected for each in runs)
    far = [each for each in found if abs(each.apart) > config.tolerance]
    what = ", ".join(filter(None, (config.family, config.condition)))
    title = f"{config.split}: {what}, {config.workers} engines, {config.requests} requests"
    output.print(agreement_table(found, title))
    verdict = "all within" if not far else f"{len(far)} of {len(found)} not within"
    output.print(f"{verdict} {config.tolerance:.0%}; {failed} requests failed")
    content: dict[str, Any] = {
        "benchmark": "live",
        "config": asdict(config),
        "figures": [{**each._asdict(), "apart": each.apart} for each in found],
        "failed": failed,
        "agrees": not far,
    }
    output.write(content)
    return 1 if far or failed else 0
