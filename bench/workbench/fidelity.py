"""dynamo-router bench fidelity: how close synthesized traces come to the one that was learned."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from rich.table import Table

from ...process.setting_checks import require_at_least
from ...process.settings import option
from ..evaluation import SPLIT_NAMES, Split, split_of
from ..results import Benchmark, Column, Measurement, rows_table
from ..synthesizer import (
    SAMPLE_TRACE,
    TOLERANCE,
    WINDOW,
    ModelKind,
    TraceModel,
    learn_model,
    synthesize,
)
from ..traces import (
    Samples,
    TraceAnalysis,
    analyze,
    check_trace_block_size,
    columns_of,
    read_columns,
    trace_distances,
)
from ..traffic import TRAFFIC_BLOCK_SIZE, generate_traffic

SPLIT_REQUESTS = 1000
"""Of a trace of a family, where it is not said."""
SHOWN_OF_A_SPLIT = 4
"""Figures in the table, of those in the JSON."""

# Name, model, and the window of the Markov ones (0: one set of transitions, a memoryless walk).
CANDIDATES: tuple[tuple[str, ModelKind, int], ...] = (
    ("memoryless", "markov", 0),
    ("markov", "markov", WINDOW),
    ("sessions", "sessions", WINDOW),
)


@dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    trace: str = field(
        default=str(SAMPLE_TRACE), metadata={"help": "The trace to learn.", "positional": True}
    )
    seeds: int = option(4, "Traces of each model, of seeds 0, 1, 2 ...")
    split: str | None = option(
        None,
        "In place of one trace, a trace of each family and seed of the split, at its first fleet's"
        " load; of the sessions alone.",
        choices=SPLIT_NAMES,
    )
    requests: int | None = option(
        None,
        f"Requests of each; not given: as many as were learned, of a split {SPLIT_REQUESTS}.",
    )
    cache_tokens: int = option(4_000_000, "The pool of caches to compare hit rates of.")
    trace_block_size: int | None = option(
        None,
        "Tokens that one hash id of the trace stands for; not given: as a record states, else 512.",
    )
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "seeds", "cache_tokens", "requests")
        check_trace_block_size(self.trace_block_size)


def measure_fidelity(config: FidelityConfig) -> Iterator[dict[str, Any]]:
    """One result per model and seed: what differs, as shares of the learned, and the distances."""
    columns = read_columns(config.trace, trace_block_size=config.trace_block_size)
    learned, samples = analyze(columns)
    targets = headline(learned, samples, config.cache_tokens)
    models: dict[int, TraceModel] = {}
    for name, kind, window in CANDIDATES:
        started = perf_counter()
        if window not in models:
            models[window] = learn_model(columns, window)
        learn_s = perf_counter() - started
        for seed in range(config.seeds):
            started = perf_counter()
            requests = list(
                synthesize(models[window], config.requests or len(columns), seed=seed, kind=kind)
            )
            sample_s = perf_counter() - started
            made, drawn = analyze(columns_of(requests, trace_block_size=columns.block_size))
            values = headline(made, drawn, config.cache_tokens)
            yield {
                "model": name,
                "seed": seed,
                "values": values,
                "deviations": deviations(values, targets),
                "distances": trace_distances(samples, drawn),
                "learn_s": learn_s,
                "requests_per_s": len(requests) / sample_s,
            }


def measure_split(config: FidelityConfig, split: Split) -> Iterator[dict[str, Any]]:
    """One result per family, seed of its traffic and seed of ours: what differs, in shares."""
    fleet, size = split.fleets[0], config.requests or SPLIT_REQUESTS
    for family, spec in split.traffic.items():
        rate = spec.rate * fleet.workers * fleet.load
        for trace_seed in split.seeds:
            made = generate_traffic(spec, size, rate=rate, seed=trace_seed, first_id=split.first_id)
            columns = columns_of(made, trace_block_size=TRAFFIC_BLOCK_SIZE)
            targets = headline(*analyze(columns), config.cache_tokens)
            model = learn_model(columns)
            for seed in range(config.seeds):
                drawn = columns_of(
                    synthesize(model, size, seed=seed), trace_block_size=TRAFFIC_BLOCK_SIZE
                )
                values = headline(*analyze(drawn), config.cache_tokens)
                yield {
                    "family": family,
                    "trace_seed": trace_seed,
                    "seed": seed,
                    "deviations": deviations(values, targets),
                }


def deviations(values: Mapping[str, float], targets: Mapping[str, float]) -> dict[str, float]:
    """By how much of the learned figure each is off; 0 where that is 0."""
    return {key: value / targets[key] - 1 if targets[key] else 0.0 for key, value in values.items()}


def split_table(rows: list[dict[str, Any]]) -> Table:
    """The range of each family's deviations, in percent, and how many are beyond TOLERANCE."""
    names = list(rows[0]["deviations"])[:SHOWN_OF_A_SPLIT]
    table = []
    for family in dict.fromkeys(row["family"] for row in rows):
        found = [row["deviations"] for row in rows if row["family"] == family]
        shown = {"family": family, "traces": len(found)}
        for name in names:
            offs = [each[name] for each in found]
            beyond = sum(abs(off) > TOLERANCE for off in offs)
            shown[name] = f"{100 * min(offs):+.1f} to {100 * max(offs):+.1f} ({beyond})"
        table.append(shown)
    columns = [Column("family", "family"), Column("traces", "traces", 0)]
    title = f"deviation from the learned traces, %, and how many are beyond {TOLERANCE:.0%}"
    return rows_table(table, [*columns, *(Column(name, name) for name in names)], title)


def headline(analysis: TraceAnalysis, samples: Samples, cache_tokens: int) -> dict[str, float]:
    """The figures that a synthesized trace is held to."""
    return {
        "hit rate, infinite cache": analysis.hit_rate_infinite,
        "input length mean": analysis.input_length.mean or 0.0,
        "input length std": analysis.input_length.std or 0.0,
        "output length mean": analysis.output_length.mean or 0.0,
        f"hit rate, {cache_tokens:,} tokens": samples.curve.hit_rate(cache_tokens),
    }


def measure(config: FidelityConfig) -> dict[str, Any]:
    """Every result, and the spread of each model's distances over its seeds."""
    if config.split is not None:
        return {
            "split": config.split,
            "results": list(measure_split(config, split_of(config.split))),
        }
    results = list(measure_fidelity(config))
    distances = Measurement[str]()
    for result in results:
        distances.add(result["model"], result["distances"])
    return {"trace": config.trace, "results": results, "distances": distances.spreads()}


def tables(result: Mapping[str, Any]) -> list[Table]:
    """How far each trace is from the learned one, in percent; the models side by side."""
    results = result["results"]
    if "split" in result:
        return [split_table(results)]
    distances = result["distances"]
    shown = [
        Column(name, f"deviations.{name}", lambda share: f"{100 * share:+.1f}")
        for name in results[0]["deviations"]
    ]
    rows = [
        {"": key.replace("_", " "), **{name: each[key] for name, each in distances.items()}}
        for key in results[0]["distances"]
    ]
    return [
        rows_table(
            results,
            [Column("model", "model"), Column("seed", "seed"), *shown],
            "deviation from the learned trace, %",
        ),
        rows_table(
            rows,
            [Column("", ""), *(Column(name, name, 4) for name in distances)],
            "distance to the learned trace (0 alike, 1 apart), median of seeds",
        ),
    ]


run = Benchmark("fidelity", measure, tables)
