"""dynamo-router bench flood: what a tenant sees beside one that sends too much, simulated.

The others' requests begin by themselves; then one tenant sends ten times as many. The same requests
of the others, from then on, are compared with what they would be alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np
from rich.table import Table

from ...process.setting_checks import require_at_least, require_positive
from ...process.settings import bad_setting, option
from ...router.admission import TenantConfig
from ..evaluation import FLOOD, REPORT, SPLIT_NAMES, Split, flooded_traffic, split_of
from ..results import Benchmark, Column, rows_table
from ..simulation import Experiment, Load, Result, SimulationConfig
from ..traces import TraceRequest, encode_request
from ..traffic import TRAFFIC_BLOCK_SIZE

ALONE = "alone"
UNNAMED, NAMED, SHED = "flooded, unnamed", "flooded, named", "named, shedding"
FLOODED: Mapping[str, Mapping[str, bool]] = {
    UNNAMED: {"named": False, "shed": False},
    NAMED: {"named": True, "shed": False},
    SHED: {"named": True, "shed": True},
}
"""How the router distinguishes tenants, and whether it refuses what is too much, by run."""


@dataclass(frozen=True, kw_only=True)
class FloodConfig:
    """What to run. Raises ConfigError, naming the key, on a bad value."""

    split: str = option(REPORT, "Whose traffic, engines and seeds.", choices=SPLIT_NAMES)
    families: tuple[str, ...] = option(
        ("conversation", "documents", "tenants"),
        "Families of it; may be repeated.",
        flag="--family",
    )
    others: float = option(
        0.3, "The load of the others, in parts of the family's rate; the flood is ten times that."
    )
    requests: int = option(400, "Requests of the others.")
    flood_after_s: float = option(20.0, "The flood begins so long after the others, seconds.")
    seeds: int = option(2, "Seeds of the split, at most as many as it has.")
    policy: str = option("forecast", "Policy of the router.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "requests", "seeds")
        require_positive(self, "others", "flood_after_s")
        split = split_of(self.split)
        if self.seeds > len(split.seeds):
            raise bad_setting(
                "seeds", f"{self.seeds} is more than the {len(split.seeds)} there are"
            )
        for family in self.families:
            if family not in split.traffic:
                text = f"{family!r} is none of {', '.join(split.traffic)}"
                raise bad_setting("families", text)


class Outcome(NamedTuple):
    """What became of the others' requests from the beginning of the flood on; times in ms.

    `tokens_per_s` are the output tokens of all tenants while the others sent.
    """

    family: str
    seed: int
    run: str
    ttft_ms: float
    p99_ms: float
    queued_ms: float  # of the mean TTFT, in the router
    itl_ms: float
    refused: float  # share
    flood_refused: float
    tokens_per_s: float


MEANS = Outcome._fields[3:]
"""The figures of an outcome."""


def traffic_of(config: FloodConfig, split: Split, family: str, seed: int) -> list[TraceRequest]:
    """The requests of both by time, as long as the others send; ConfigError if too short."""
    made = flooded_traffic(
        split.traffic[family],
        round(config.requests * (1 + FLOOD)),
        rate=split.traffic[family].rate * split.fleets[0].workers * config.others * (1 + FLOOD),
        seed=seed,
        first_id=split.first_id,
    )
    later = [
        msgspec.structs.replace(each, timestamp_ms=each.timestamp_ms + 1e3 * config.flood_after_s)
        if each.tenant == "flood"
        else each
        for each in made
    ]
    ends = max(each.timestamp_ms for each in made if each.tenant == "others")
    later = [each for each in later if each.timestamp_ms <= ends]
    if all(each.tenant == "others" for each in later):
        raise bad_setting("flood_after_s", f"the others end after {ends / 1e3:.0f} s")
    return sorted(later, key=lambda each: each.timestamp_ms)


def measure_outcomes(config: FloodConfig) -> Iterator[Outcome]:
    """Each run of each family and seed."""
    split = split_of(config.split)
    with TemporaryDirectory() as folder:
        for family in config.families:
            for seed in split.seeds[: config.seeds]:
                both = traffic_of(config, split, family, seed)
                path = Path(folder) / f"{family}-{seed}.jsonl"
                alone = [each for each in both if each.tenant == "others"]
                found = _run(config, split, path, alone, seed, named=False, shed=False)
                yield _outcome(config, found, family, seed, ALONE)
                for name, how in FLOODED.items():
                    found = _run(config, split, path, both, seed, **how)
                    yield _outcome(config, found, family, seed, name)


def _run(
    config: FloodConfig,
    split: Split,
    path: Path,
    requests: Sequence[TraceRequest],
    seed: int,
    *,
    named: bool,
    shed: bool,
) -> Result:
    path.write_bytes(b"".join(map(encode_request, requests)))
    fleet = split.fleets[0]
    simulation = SimulationConfig(
        block_size=TRAFFIC_BLOCK_SIZE, num_gpu_blocks=fleet.num_gpu_blocks
    )
    base = simulation.router()
    tenants = replace(
        base.admission.tenants, tenant_key=TenantConfig().tenant_key if named else None
    )
    load = Load(trace=str(path), trace_block_size=TRAFFIC_BLOCK_SIZE, seed=seed)
    experiment = Experiment(simulation, load, fleet.workers)
    admission = replace(base.admission, shed=shed, tenants=tenants)
    (variant,) = experiment.variants(config.policy, replace(base, admission=admission))
    return experiment.run(variant, seed)


def _outcome(config: FloodConfig, found: Result, family: str, seed: int, run: str) -> Outcome:
    log, trace = found.log, found.trace
    names = np.array([request.tenant for request in trace.requests])
    outputs = np.array([trace.output_tokens(place) for place in range(len(trace))])
    begins = log.arrival_s >= config.flood_after_s
    others, flood = begins & (names == "others"), names == "flood"
    served = others & log.served
    ttft = (log.first_s - log.arrival_s)[served]
    itl = ((log.last_s - log.first_s) / np.maximum(outputs - 1, 1))[served]
    until = log.arrival_s[others].max(initial=config.flood_after_s)
    in_time = log.served & (log.last_s > config.flood_after_s) & (log.last_s <= until)
    tokens = outputs[in_time].sum() / max(until - config.flood_after_s, 1e-9)
    return Outcome(
        family,
        seed,
        run,
        1e3 * float(ttft.mean()),
        1e3 * float(np.quantile(ttft, 0.99)),
        1e3 * float(log.queued_s[served].mean()),
        1e3 * float(itl.mean()),
        1 - len(ttft) / max(1, int(others.sum())),
        1 - float(log.served[flood].mean()) if flood.any() else 0.0,
        float(tokens),
    )


def ratios(found: Sequence[Outcome], family: str, run: str) -> list[float]:
    """The 99th percentiles of TTFT over those alone, by seed."""
    alone = {each.seed: each.p99_ms for each in found if (each.family, each.run) == (family, ALONE)}
    of_run = [each for each in found if (each.family, each.run) == (family, run)]
    return [each.p99_ms / alone[each.seed] for each in of_run]


def table(found: Sequence[Outcome], title: str) -> Table:
    """A row for each family and run: means over the seeds."""
    rows = []
    for family, run in dict.fromkeys((each.family, each.run) for each in found):
        of_run = [each._asdict() for each in found if (each.family, each.run) == (family, run)]
        means = {key: mean(each[key] for each in of_run) for key in MEANS}
        beside = geometric_mean(ratios(found, family, run))
        rows.append({"family": family, "run": run, "ratio": beside, **means})
    columns = (
        Column("family", "family"),
        Column("run", "run"),
        Column("TTFT ms", "ttft_ms", 0),
        Column("p99 ms", "p99_ms", 0),
        Column("p99 / alone", "ratio", 2),
        Column("waited here ms", "queued_ms", 1),
        Column("ITL ms", "itl_ms", 1),
        Column("refused", "refused", 3),
        Column("flood refused", "flood_refused", 3),
        Column("tokens/s of all", "tokens_per_s", 0),
    )
    return rows_table(rows, columns, title)


def measure(config: FloodConfig) -> dict[str, Any]:
    """All outcomes."""
    return {"outcomes": [each._asdict() for each in measure_outcomes(config)]}


def tables(result: Mapping[str, Any]) -> list[Table]:
    config = result["config"]
    title = f"{config['split']}: the others' requests, {config['seeds']} seeds"
    return [table([Outcome(**each) for each in result["outcomes"]], title)]


run = Benchmark("flood", measure, tables)
