"""dynamo-router bench disagg: eight engines apart or not, simulated, in families of traffic.

Each cell is a family at a load. `off`: every engine runs whole requests; `always` and `conditional`
have some of them compute prompts alone. What is compared are the good requests by the relative
objective, times, and the rate up to which enough are good.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.table import Table

from ...process.setting_checks import require_at_least
from ...process.settings import bad_setting, is_finite, option
from ...router.disagg import DISAGG_MODES, DisaggConfig
from ..evaluation import REPORT, SPLIT_NAMES, Split, split_of
from ..results import Benchmark, Column, rows_table, save_figure
from ..simulation import (
    FIRST_TOKENS,
    CapacityConfig,
    Experiment,
    Load,
    RoleConfig,
    SimulationConfig,
)
from ..traces import encode_request
from ..traffic import TRAFFIC_BLOCK_SIZE, TrafficSpec, generate_traffic

LONG = "long-documents"
"""The documents of a split, three times as long, a third as often, and of more kinds."""
ATTENTION_US = 500.0
"""Of a dense 8B model: without it, no prompt is too long."""
OFF, ALWAYS, CONDITIONAL = DISAGG_MODES


@dataclass(frozen=True, kw_only=True)
class DisaggBenchConfig:
    """What to run. Raises ConfigError, naming the key, on a bad value."""

    split: str = option(REPORT, "Whose traffic and seeds.", choices=SPLIT_NAMES)
    families: tuple[str, ...] = option(
        ("conversation", "agents", "documents", LONG, "coders", "heavy-tail", "rag", "batch"),
        f"Families of it, and {LONG}; may be repeated.",
        flag="--family",
    )
    workers: int = option(8, "Engines.")
    prefill_workers: tuple[int, ...] = option(
        (2, 4), "How many of them compute prompts alone; may be repeated.", flag="--prefill"
    )
    loads: tuple[float, ...] = option(
        (0.7, 1.0), "Arrivals, in parts of the family's rate; may be repeated.", flag="--load"
    )
    requests: int = option(1500, "Requests of a cell.")
    first_token: str = option(
        "decode",
        "Whose first token goes to the client: see `simulate`.",
        choices=FIRST_TOKENS,
    )
    num_gpu_blocks: int = option(16384, "KV-cache blocks of an engine.")
    search: CapacityConfig = field(default_factory=CapacityConfig, metadata={"inline": True})
    plot: str | None = option(None, "Write a picture into this file.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "requests", "num_gpu_blocks")
        require_at_least(self, 2, "workers")
        traffic = traffic_of(split_of(self.split))
        for family in self.families:
            if family not in traffic:
                raise bad_setting("families", f"{family!r} is none of {', '.join(traffic)}")
        for count in self.prefill_workers:
            if not 0 < count < self.workers:
                text = f"{count} must leave at least one of {self.workers} engines that decode"
                raise bad_setting("prefill_workers", text)
        for load in self.loads:
            if not (is_finite(load) and load > 0):
                raise bad_setting("loads", f"{load!r} must be finite and above 0")


class Cell(NamedTuple):
    """One run. Times in ms; `prefill` are engines that compute prompts alone."""

    family: str
    load: float
    mode: str
    prefill: int
    prompt_tokens: float
    good: float  # share, by the relative objective
    ttft_ms: float
    ttft_p99_ms: float
    itl_p99_ms: float
    remote: float
    capacity: float | None  # requests a second


def traffic_of(split: Split) -> dict[str, TrafficSpec]:
    """The families of a split, and one whose prompts are longer than 20 000 tokens."""
    short = split.traffic["documents"]
    long = replace(
        short,
        family=LONG,
        rate=short.rate / 3.6,
        prefixes=4 * short.prefixes,
        prefix_tokens=3 * short.prefix_tokens,
        prefix_spread=short.prefix_spread / 2,
        max_prompt_tokens=100_000,
    )
    return {**split.traffic, LONG: long}


def measure_cells(config: DisaggBenchConfig) -> Iterator[Cell]:
    """Each run of each family and load."""
    split = split_of(config.split)
    traffic, seed = traffic_of(split), split.seeds[0]
    apart = [(mode, count) for count in config.prefill_workers for mode in (ALWAYS, CONDITIONAL)]
    with TemporaryDirectory() as folder:
        for family in config.families:
            spec = traffic[family]
            for load in config.loads:
                path = Path(folder) / f"{family}-{load}.jsonl"
                made = generate_traffic(
                    spec,
                    config.requests,
                    rate=spec.rate * config.workers * load,
                    seed=seed,
                    first_id=split.first_id,
                )
                path.write_bytes(b"".join(map(encode_request, made)))
                for mode, count in ((OFF, 0), *apart):
                    searched = config.search.capacity and load == max(config.loads)
                    yield _run(config, path, seed, (family, load, mode, count), searched)


def _run(
    config: DisaggBenchConfig,
    path: Path,
    seed: int,
    cell: tuple[str, float, str, int],
    searched: bool,
) -> Cell:
    family, load, mode, prefill = cell
    roles = RoleConfig()
    if prefill:
        roles = RoleConfig(
            prefill_workers=prefill,
            decode_workers=config.workers - prefill,
            first_token=config.first_token,
        )
    simulation = SimulationConfig(
        block_size=TRAFFIC_BLOCK_SIZE,
        num_gpu_blocks=config.num_gpu_blocks,
        attention_us_per_ktoken2=ATTENTION_US,
        roles=roles,
        disagg=DisaggConfig(disagg=mode) if prefill else DisaggConfig(),
        search=replace(config.search, capacity=searched),
    )
    sent = Load(trace=str(path), trace_block_size=TRAFFIC_BLOCK_SIZE, seed=seed)
    experiment = Experiment(simulation, sent, 0 if prefill else config.workers)
    (variant,) = experiment.variants("kv")
    run = experiment.run(variant, seed).run
    return Cell(
        family,
        load,
        mode,
        prefill,
        run.details["input_tokens"] / config.requests,
        run.goodput.relative or 0.0,
        run.ttft_ms.mean or 0.0,
        run.ttft_ms.p99 or 0.0,
        run.itl_ms.p99 or 0.0,
        run.remote_prefill_share,
        run.capacity,
    )


def rows_of(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A row for each family, load and number of prefill workers; `against` is the goodput of
    conditional over the better of the others."""
    found = {each[:4]: each for each in cells}
    rows = []
    for family, load, mode, prefill in found:
        if mode != CONDITIONAL:
            continue
        off, always = found[family, load, OFF, 0], found[family, load, ALWAYS, prefill]
        own = found[family, load, mode, prefill]
        row: dict[str, Any] = {
            "family": family,
            "load": load,
            "engines": f"{prefill}P",
            "remote": own.remote,
            "against": own.good / max(off.good, always.good, 1e-9),
            "itl": own.itl_p99_ms / max(off.itl_p99_ms, 1e-9),
            "ttft": own.ttft_ms / max(off.ttft_ms, 1e-9),
        }
        if own.capacity is not None and off.capacity:
            row["capacity"] = own.capacity / off.capacity
        for each in (off, always, own):
            row[f"good_{each.mode}"] = each.good
        rows.append(row)
    return rows


def table(cells: Sequence[Cell], title: str) -> Table:
    """Goodput of the three modes; TTFT and ITL of two of them beside those of `off`."""
    columns = [
        Column("family", "family"),
        Column("load", "load", 1),
        Column("P", "engines"),
        Column("remote", "remote", 2),
        Column("off", "good_off", 3),
        Column("always", "good_always", 3),
        Column("cond.", "good_conditional", 3),
        Column("/ better", "against", 3),
        Column("TTFT / off", "ttft", 2),
        Column("ITL p99 / off", "itl", 2),
    ]
    rows = rows_of(cells)
    if any("capacity" in row for row in rows):
        columns.append(Column("capacity / off", "capacity", 2))
    return rows_table(rows, columns, title)


def draw(cells: Sequence[Cell], path: str) -> Path:
    """ITL and TTFT of conditional beside off, a point for each row, into a file."""
    from matplotlib.figure import Figure

    rows = rows_of(cells)
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for place, family in enumerate(dict.fromkeys(row["family"] for row in rows)):
        own = [row for row in rows if row["family"] == family]
        axes.scatter(
            [row["ttft"] for row in own],
            [row["itl"] for row in own],
            label=family,
            marker="osD^vP*X<>"[place % 10],
            s=45,
        )
    axes.axhline(1.0, color="0.6", linewidth=1)
    axes.axvline(1.0, color="0.6", linewidth=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_title("Conditional beside whole requests on every engine", loc="left")
    axes.set_xlabel("mean TTFT, times that of off")
    axes.set_ylabel("ITL p99, times that of off")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    return save_figure(figure, path)


def measure(config: DisaggBenchConfig) -> dict[str, Any]:
    """All cells; the picture, if one is wanted."""
    cells = list(measure_cells(config))
    if config.plot is not None:
        draw(cells, config.plot)
    return {"cells": [each._asdict() for each in cells]}


def tables(result: Mapping[str, Any]) -> list[Table]:
    config = result["config"]
    title = f"{config['split']}: {config['workers']} engines, {config['requests']} requests a cell"
    return [table([Cell(**each) for each in result["cells"]], title)]


run = Benchmark("disagg", measure, tables)
