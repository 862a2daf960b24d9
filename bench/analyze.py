"""dynamo-router analyze: what a trace is like, and how others differ from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from ..process.setting_checks import require_at_least
from ..process.settings import bad_setting, option
from .results import Column, Output, facts_table, format_number, new_table, rows_table, write_json
from .synthesizer import describe_model, is_model, load_model
from .traces import (
    Samples,
    Spread,
    TraceAnalysis,
    analyze,
    check_plot_target,
    check_trace_block_size,
    default_sizes,
    plot_traces,
    read_columns,
    trace_distances,
)


@dataclass(frozen=True, kw_only=True)
class AnalyzeConfig:
    """What to analyze. Raises ConfigError, naming the key, on a bad value."""

    traces: tuple[str, ...] = field(
        metadata={
            "help": "Traces (JSON lines, also gzipped), shown beside the first one; or one model.",
            "positional": True,
        }
    )
    trace_block_size: int | None = option(
        None,
        "Tokens that one hash id stands for; not given: as a record states, else 512.",
    )
    cache_tokens: tuple[int, ...] = option(
        (), "Cache size to report the hit rate of; may be repeated. Not given: 125k, doubled."
    )
    plot: str | None = option(None, "Write plots to this file (.png, .svg, .pdf).")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        if not self.traces:
            raise bad_setting("traces", "at least one is needed")
        check_trace_block_size(self.trace_block_size)
        if self.cache_tokens:
            require_at_least(self, 1, "cache_tokens")


def run(config: AnalyzeConfig) -> int:
    """The command: 0, or ConfigError for what cannot be read or written."""
    output = Output(config.json)
    check_plot_target(config.plot)
    for trace in config.traces:
        if is_model(trace):
            _inspect(config, trace, output)
            return 0
    analyses, samples = _analyze_all(config)
    labels = trace_labels(config.traces)
    distances = {
        label: trace_distances(samples[0], each)
        for label, each in zip(labels[1:], samples[1:], strict=True)
    }
    output.print(analysis_table(labels, analyses))
    for label, analysis in zip(labels, analyses, strict=True):
        output.print(prefixes_table(label, analysis))
    if distances:
        output.print(distances_table(labels[0], distances))
    if config.plot is not None:
        plot_traces(dict(zip(labels, samples, strict=True)), config.plot)
    result: dict[str, Any] = asdict(analyses[0])
    if distances:
        result["others"] = [
            {**asdict(analysis), "distances": apart}
            for analysis, apart in zip(analyses[1:], distances.values(), strict=True)
        ]
    output.write(result)
    return 0


def _analyze_all(config: AnalyzeConfig) -> tuple[list[TraceAnalysis], list[Samples]]:
    """Every trace's analysis, all hit-rate curves at the same cache sizes."""
    found = [
        analyze(read_columns(trace, trace_block_size=config.trace_block_size))
        for trace in config.traces
    ]
    largest = max(int(samples.reuse_distance.max(initial=0)) for _, samples in found)
    sizes = config.cache_tokens or default_sizes(largest)
    analyses = [
        replace(analysis, hit_rate_curve=samples.curve.curve(sizes)) for analysis, samples in found
    ]
    return analyses, [samples for _, samples in found]


def trace_labels(paths: Sequence[str]) -> list[str]:
    """A different name for each trace: that of its file, its path, or with a number behind it."""
    names = [Path(path).name for path in paths]
    labels = [
        name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)
    ]
    return [
        label if label not in labels[:at] else f"{label} ({labels[:at].count(label) + 1})"
        for at, label in enumerate(labels)
    ]


def _inspect(config: AnalyzeConfig, model: str, output: Output) -> None:
    if len(config.traces) > 1 or config.plot is not None:
        raise bad_setting("traces", f"{model} is a model: make a trace of it to compare")
    facts = describe_model(load_model(model))
    output.print(facts_table(model, facts))
    if config.json is not None:
        write_json(config.json, {"model": model, **facts})


def analysis_table(labels: Sequence[str], analyses: Sequence[TraceAnalysis]) -> Table:
    """Traces side by side, a column each."""
    table = new_table("")
    for label in labels:
        table.add_column(label, justify="right", overflow="fold")
    columns = [list(_rows(analysis)) for analysis in analyses]
    for cells in zip(*columns, strict=True):
        table.add_row(cells[0][0], *(cell for _, cell in cells))
    return table


def prefixes_table(label: str, analysis: TraceAnalysis) -> Table:
    """The most visited prefixes of a trace."""
    columns = (
        Column("tokens", "tokens", 0),
        Column("requests", "requests", 0),
        Column("share", "share", 3),
        Column("continuations", "continuations", 0),
        Column("last id", "last_id"),
    )
    rows = [asdict(prefix) for prefix in analysis.top_prefixes]
    return rows_table(rows, columns, f"prefixes of {label}")


def distances_table(first: str, distances: Mapping[str, Mapping[str, float]]) -> Table:
    """How far other traces lie from the first one, a column each."""
    table = new_table("", title=f"distance from {first} (0 alike, 1 apart)")
    for label in distances:
        table.add_column(label, justify="right", overflow="fold")
    for name in next(iter(distances.values())):
        cells = [format_number(apart[name], 3) for apart in distances.values()]
        table.add_row(name.replace("_", " "), *cells)
    return table


def _rows(found: TraceAnalysis) -> Iterator[tuple[str, str]]:
    yield "requests", format_number(found.requests, 0)
    yield "span s", format_number(found.span_s, 1)
    yield "rate /s", format_number(found.arrivals.rate_per_s, 2)
    yield (
        "requests an instant, mean / max",
        _cells(found.arrivals.requests_per_instant, 1, "mean max"),
    )
    yield "interarrival cv (1: independent)", format_number(found.arrivals.interarrival_cv, 2)
    yield "dispersion a minute (1: independent)", format_number(found.arrivals.dispersion_60s, 2)
    for name, spread in (
        ("input", found.input_length),
        ("context", found.context_length),
        ("unique prompt", found.unique_prompt_length),
        ("output", found.output_length),
    ):
        yield f"{name} tokens mean / std", _cells(spread, 0, "mean std")
        yield "  min / p25 / median", _cells(spread, 0, "min p25 median")
        yield "  p75 / p99 / max", _cells(spread, 0, "p75 p99 max")
    yield (
        "blocks, different",
        f"{format_number(found.blocks.total, 0)}, {format_number(found.blocks.different, 0)}",
    )
    yield "blocks reused", format_number(found.blocks.reused_share, 3)
    yield (
        "reuse distance tokens p25 / median / p75",
        _cells(found.blocks.reuse_distance_tokens, 0, "p25 median p75"),
    )
    yield "prompt depth blocks mean / max", _cells(found.tree.prompt_depth, 1, "mean max")
    yield "shared depth blocks mean / max", _cells(found.tree.shared_depth, 1, "mean max")
    yield "branching blocks", format_number(found.tree.branching_blocks, 0)
    yield "branches mean / max", _cells(found.tree.branches, 1, "mean max")
    yield "stem blocks", format_number(found.tree.stem_blocks, 0)
    yield "sessions", format_number(found.sessions.count, 0)
    yield "requests a session mean / p99 / max", _cells(found.sessions.requests, 1, "mean p99 max")
    yield (
        "span s of several, median / p75 / p99",
        _cells(found.sessions.span_s, 0, "median p75 p99"),
    )
    yield "follow-up share", format_number(found.sessions.follow_up_share, 3)
    yield "follow-ups with all the history", format_number(found.sessions.whole_history_share, 3)
    yield "gap s p25 / median / p75", _cells(found.sessions.gap_s, 1, "p25 median p75")
    yield "hit rate, infinite cache", format_number(found.hit_rate_infinite, 4)
    for size, rate in found.hit_rate_curve:
        yield f"  {format_number(size, 0)} tokens", format_number(rate, 4)


def _cells(spread: Spread, digits: int, names: str) -> str:
    return " / ".join(format_number(getattr(spread, name), digits) for name in names.split())
