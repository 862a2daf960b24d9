"""The page of a report: one HTML file that needs nothing else, in light and dark."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from html import escape

import numpy as np
from numpy.typing import NDArray

from ...base.package_version import package_version
from ..results import format_number
from ..traces import Record, RecordedRequest, Samples, TraceAnalysis, default_sizes
from .advice import Advice
from .charts import Axis, Bar, Format, Mark, Series, axis_of, bars, lines, points
from .outlook import Change, Estimate, Outlook, percent_change
from .page_style import STYLE
from .routing import SERVED, FleetFacts, RoutingFigures, of, predictions

WINDOWS = 60
"""Of time, in a chart over the record."""
MOST_DOTS = 700
MOST_WORKERS = 16
PERCENTILES = np.linspace(0, 1, 101)


def write_page(
    title: str,
    record: Record,
    fleet: FleetFacts,
    analysis: TraceAnalysis,
    samples: Samples,
    figures: RoutingFigures,
    outlook: Outlook | None,
    advice: Sequence[Advice],
) -> str:
    """The whole page."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(_subtitle(record, fleet, analysis))}</p>',
        _tiles(analysis, figures),
        _advice(advice, outlook is not None),
        _traffic(record, fleet, analysis, samples),
        _routing(record, figures),
        "" if outlook is None else _outlook(outlook, record),
        _footer(record, outlook),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _subtitle(record: Record, fleet: FleetFacts, analysis: TraceAnalysis) -> str:
    header = record.header
    began = datetime.fromisoformat(header.began)
    first, last = (
        began + timedelta(milliseconds=float(record.requests[place].timestamp_ms))
        for place in (0, -1)
    )
    until = f" to {last:%H:%M:%S}" if (last - first).total_seconds() >= 1 else ""
    words = [
        f"{first:%Y-%m-%d %H:%M:%S}{until} UTC",
        f"{fleet.workers} worker{'s' if fleet.workers > 1 else ''}",
        f"policy {header.policy}" if header.policy else "",
        f"model {header.model}" if header.model else "",
        f"{len(record.headers)} files" if len(record.headers) > 1 else "",
    ]
    return " · ".join(word for word in words if word)


def _tiles(analysis: TraceAnalysis, figures: RoutingFigures) -> str:
    rate, ttft = analysis.arrivals.rate_per_s, figures.ttft_ms
    tiles = [
        (
            f"{figures.requests:,}",
            "requests" + ("" if rate is None else f", {_short(rate)} a second"),
        ),
        (_percent(figures.cached_share), "of prompt tokens were cached"),
        (_percent(figures.avoidable_prefill), "of computed prompt tokens were avoidable"),
        (_ms(ttft.p50), f"TTFT in the median, {_ms(ttft.p99)} in the 99th percentile"),
        (_percent(figures.goodput), "of requests within their objectives"),
        (f"{figures.failed:,}", f"request{'' if figures.failed == 1 else 's'} failed"),
    ]
    body = "".join(
        f'<div class="tile"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in tiles
    )
    return f'<div class="tiles">{body}</div>'


def _advice(advice: Sequence[Advice], simulated: bool) -> str:
    head = "<h2>What to change</h2>"
    if not advice:
        text = "Nothing in this record speaks for another setting."
        if not simulated:
            text += " Other policies and fleets were not simulated."
        return f'{head}<div class="card advice"><b>{text}</b></div>'
    return head + "".join(
        f'<div class="card advice{" urgent" if each.urgent else ""}"><b>{escape(each.what)}</b>'
        f"<p>{escape(each.why)}</p></div>"
        for each in advice
    )


def _traffic(record: Record, fleet: FleetFacts, analysis: TraceAnalysis, samples: Samples) -> str:
    requests = record.requests
    times = np.array([each.timestamp_ms for each in requests]) / 1e3
    times -= times[0]
    span = float(times[-1]) or 1.0
    counts, edges = np.histogram(times, WINDOWS, (0, span))
    width = span / WINDOWS
    scale, unit = _time_unit(span)
    rate = [
        (float(edge) / scale, count / width) for edge, count in zip(edges, counts, strict=False)
    ]
    lengths = [
        Series("prompt", _distribution(samples.input_length), 1),
        Series("answer", _distribution(samples.output_length), 3),
    ]
    sizes = default_sizes(int(samples.reuse_distance.max(initial=0)))
    curve = [(float(size), share) for size, share in samples.curve.curve(_finer(sizes))]
    marks = []
    if fleet.blocks is not None:
        engine = fleet.blocks * fleet.block_size
        marks = [Mark(engine, "one engine")]
        if fleet.workers > 1:
            marks.append(Mark(engine * fleet.workers, "all engines"))
    size_axis = axis_of(
        [each for each, _ in curve] + [mark.x for mark in marks], log=True, show=_si
    )
    reuse = samples.reuse_distance[samples.reuse_distance > 0]
    gaps, sessions = samples.gap_s, analysis.sessions
    charts = [
        lines(
            "Requests a second",
            [Series("requests", rate)],
            axis_of([span / scale], show=_short),
            axis_of([value for _, value in rate], show=_short),
            x_name=f"since the first request, {unit}",
            y_name="requests / s",
        ),
        lines(
            "Lengths of prompts and answers",
            lengths,
            axis_of([x for each in lengths for x, _ in each.points], log=True, show=_si),
            axis_of([0, 1], show=_whole_percent),
            x_name="tokens, logarithmic",
            y_name="share below",
        ),
        lines(
            "What one cache for all would hit, by its size",
            [Series("hit rate", curve, 4)],
            size_axis,
            axis_of([share for _, share in curve], top=1.0, show=_whole_percent),
            x_name="tokens in the cache, logarithmic",
            y_name="of prompt tokens",
            marks=marks,
        ),
    ]
    if len(reuse):
        found = _distribution(reuse, _reuse_weights(samples))
        charts.append(
            lines(
                "Reuse distance: tokens between two uses of a block",
                [Series("reuse", found, 4)],
                axis_of([x for x, _ in found], log=True, show=_si),
                axis_of([0, 1], show=_whole_percent),
                x_name="tokens, logarithmic",
                y_name="of reused tokens",
            )
        )
    session_p99 = sessions.requests.p99
    facts = [
        ("prompt tokens, mean / p99", _two(analysis.input_length.mean, analysis.input_length.p99)),
        (
            "answer tokens, mean / p99",
            _two(analysis.output_length.mean, analysis.output_length.p99),
        ),
        ("prompt tokens that an earlier request had", _percent(analysis.hit_rate_infinite)),
        ("prompt chains (sessions seen from prefixes)", f"{sessions.count:,}"),
        (
            "requests a chain, mean / p99",
            f"{_short(sessions.requests.mean)} / {_short(session_p99)}",
        ),
        ("time between turns, median", _seconds(float(np.median(gaps)) if len(gaps) else None)),
        (
            "arrivals: coefficient of variation (1 is Poisson)",
            _short(analysis.arrivals.interarrival_cv),
        ),
        ("tenants", f"{len({each.tenant for each in requests if each.tenant}):,}"),
    ]
    text = (
        "When requests come, how long they are, and how much of their prompts was there before."
        " A block's reuse distance is the cache that it takes to find it again."
    )
    return f'<h2>This traffic</h2><p class="sub">{text}</p>{_pairs(charts)}{_facts(facts)}'


def _routing(record: Record, figures: RoutingFigures) -> str:
    requests = record.requests
    served = [each for each in requests if each.status == SERVED]
    charts = [_hits_over_time(requests, figures)]
    ttft = of(served, "ttft_ms")
    if len(ttft):
        found = _distribution(ttft)
        charts.append(
            lines(
                "Time to first token",
                [Series("TTFT", found)],
                axis_of([x for x, _ in found], log=True, show=_short),
                axis_of([0, 1], show=_whole_percent),
                x_name="ms, logarithmic",
                y_name="share within",
            )
        )
    pairs = predictions(served)
    if pairs:
        step = max(1, len(pairs) // MOST_DOTS)
        both = axis_of([value for pair in pairs for value in pair], log=True, show=_short)
        charts.append(
            points(
                "Predicted and real TTFT of the engine",
                [Series("request", pairs[::step])],
                both,
                both,
                x_name="predicted, ms",
                y_name="real, ms",
                diagonal=True,
            )
        )
    workers = figures.workers[:MOST_WORKERS]
    if len(workers) > 1:
        total = sum(each.prompt_tokens for each in figures.workers)
        charts.append(
            bars(
                "Prompt tokens by worker",
                [Bar(f"…{each.worker[-8:]}", each.prompt_tokens / total) for each in workers],
                show=_whole_percent,
                name="share of all prompt tokens",
            )
        )
    bound = figures.infinite_share if figures.pooled_share is None else figures.pooled_share
    of_bound = None if not bound or figures.cached_share is None else figures.cached_share / bound
    kind = "of the fleet's size" if figures.pooled_share is not None else "without end"
    sooner = (
        "-" if figures.sooner is None else f"{_percent(figures.sooner)} of {figures.compared:,}"
    )
    if figures.sooner_ms is not None:
        sooner += f", by {_ms(figures.sooner_ms)} in the median"
    ratio = "-"
    if figures.ratio_p50 is not None:
        ratio = " / ".join(
            _short(each) for each in (figures.ratio_p10, figures.ratio_p50, figures.ratio_p90)
        )
    statuses = ", ".join(f"{name} {count:,}" for name, count in figures.statuses.items())
    facts = [
        ("cached prompt tokens, as engines report", _percent(figures.cached_share)),
        (f"one cache for all, {kind}, would have had", _percent(bound)),
        ("reached of that", _percent(of_bound)),
        ("computed prompt tokens that were avoidable", _percent(figures.avoidable_prefill)),
        ("another worker was predicted to answer sooner", sooner),
        ("real / predicted TTFT, p10 / p50 / p90", ratio),
        (
            "expected overlap: right / too long / too short",
            " / ".join(
                map(_percent, (figures.overlap_exact, figures.overlap_over, figures.overlap_under))
            ),
        ),
        ("later turns of named sessions on another worker", _percent(figures.moved_turns)),
        (
            "TTFT mean / p90 / p99",
            " / ".join(map(_ms, (figures.ttft_ms.mean, figures.ttft_ms.p90, figures.ttft_ms.p99))),
        ),
        ("ITL mean / p99", f"{_ms(figures.itl_ms.mean)} / {_ms(figures.itl_ms.p99)}"),
        ("whole answer mean / p99", f"{_ms(figures.e2e_ms.mean)} / {_ms(figures.e2e_ms.p99)}"),
        ("waited in the router, p99", _ms(figures.queue_ms.p99)),
        ("requests that took several attempts", f"{figures.retried:,}"),
        ("how requests ended", statuses),
    ]
    text = (
        "Against one cache that all requests go through in turn, which no fleet of several engines"
        " quite reaches, and against what the router's own model predicted. That another worker"
        " would have answered sooner can be meant so: the one chosen had more of the prompt, or"
        " others would have lost more."
    )
    return f'<h2>How good routing was</h2><p class="sub">{text}</p>{_pairs(charts)}{_facts(facts)}'


def _hits_over_time(requests: Sequence[RecordedRequest], figures: RoutingFigures) -> str:
    known = [each for each in requests if each.cached_tokens is not None]
    times = np.array([each.timestamp_ms for each in known]) / 1e3
    first = float(requests[0].timestamp_ms) / 1e3
    span = float(requests[-1].timestamp_ms) / 1e3 - first or 1.0
    scale, unit = _time_unit(span)
    prompt = np.array([each.input_length for each in known], np.float64)
    cached = np.array([each.cached_tokens or 0 for each in known], np.float64)
    expected = np.array([each.overlap_tokens or 0 for each in known], np.float64)
    windows = max(4, min(WINDOWS, len(known) // 20))
    series = []
    for name, values, colour, dashed in (
        ("cached", cached, 1, False),
        ("expected by the router", expected, 3, True),
    ):
        total, edges = np.histogram(times - first, windows, (0, span), weights=prompt)
        hits, _ = np.histogram(times - first, windows, (0, span), weights=values)
        found = [
            (float(low + high) / 2 / scale, float(hit / tokens))
            for low, high, hit, tokens in zip(edges, edges[1:], hits, total, strict=False)
            if tokens
        ]
        series.append(Series(name, found, colour, dashed))
    bound = figures.infinite_share if figures.pooled_share is None else figures.pooled_share
    series.append(Series("one cache for all", [(0, bound), (span / scale, bound)], 2, True))
    return lines(
        "Prompt tokens found in the cache",
        series,
        axis_of([span / scale], show=_short),
        Axis(0.0, 1.0, show=_whole_percent),
        x_name=f"since the first request, {unit}",
        y_name="of prompt tokens",
    )


def _outlook(outlook: Outlook, record: Record) -> str:
    first = datetime.fromisoformat(record.header.began) + timedelta(milliseconds=outlook.first_ms)
    part = f"the {outlook.requests:,} requests that came closest together"
    if outlook.requests == len(record.requests):
        part = f"all {outlook.requests:,} requests"
    text = (
        f"Simulated: {part}, within {_seconds(outlook.span_s)} from {first:%H:%M:%S} UTC, on"
        f" {outlook.workers} engines with caches of {outlook.blocks:,} blocks, empty at the start,"
        f" at {outlook.speed:.2g} times the usual mock engine's speed, which makes answers take as"
        f" long as they took. Bars and brackets are means and 95 % intervals over {outlook.seeds}"
        f" seed{'s' if outlook.seeds > 1 else ''}; they do not cover errors of the simulation"
        " itself: see how near it comes."
    )
    ttft_ms, itl_ms = outlook.objectives
    goal = f"TTFT ≤ {ttft_ms:,.0f} ms, ITL ≤ {itl_ms:,.0f} ms"
    interval = "mean over seeds, with its 95 % interval"
    parts = [
        f'<h2>What other settings would have given</h2><p class="sub">{escape(text)}</p>',
        _nearness(outlook),
    ]
    for kind, head in (
        ("policy", "Other policies"),
        ("workers", "Fewer and more workers"),
        ("memory", "Less and more cache"),
    ):
        changes = outlook.of_kind(kind)
        if len(changes) < 2:
            continue
        charts = []
        for what, key in (("mean TTFT", "ttft_ms"), ("whole answers", "e2e_ms")):
            rows = _bars(changes, key)
            charts.append(bars(f"{head}: {what}", rows, show=_one_unit(rows), name=interval))
        parts += [_pairs(charts), _changes(changes, goal)]
    return "".join(parts)


def _nearness(outlook: Outlook) -> str:
    rows = [
        (name, show(outlook.recorded[key]), show(outlook.simulated[key]))
        for name, key, show in (
            ("TTFT, mean", "ttft_ms", _ms),
            ("ITL, mean", "itl_ms", _ms),
            ("whole answer, mean (fitted)", "e2e_ms", _ms),
            ("cached prompt tokens", "cached_share", _percent),
        )
    ]
    body = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(one)}</td><td>{escape(two)}</td></tr>"
        for name, one, two in rows
    )
    head = "<tr><th>how near the simulation comes</th><th>recorded</th><th>simulated</th></tr>"
    table = f"<table>{head}{body}</table>"
    if outlook.far_apart:
        table += (
            '<p class="note">Where the two lie more than a quarter apart, take what follows for a'
            " direction, not for a size.</p>"
        )
    return f'<div class="card scroll">{table}</div>'


def _bars(changes: Sequence[Change], key: str) -> list[Bar]:
    found = []
    for change in changes:
        estimate: Estimate = getattr(change, key)
        strong = change is changes[0]
        found.append(Bar(change.name, estimate.mean, estimate.low, estimate.high, strong))
    return found


def _changes(changes: Sequence[Change], goal: str) -> str:
    names = ("", "TTFT", "against recorded", "whole answer", "against recorded", "cached", goal)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for change in changes:
        base = change is changes[0]
        cells = [
            escape(change.name),
            _ms(change.ttft_ms.mean),
            "" if base else _ratio(change.ttft_ratio),
            _ms(change.e2e_ms.mean),
            "" if base else _ratio(change.e2e_ratio),
            _percent(change.cached_share.mean),
            _percent(change.goodput.mean),
        ]
        kind = ' class="strong"' if base else ""
        rows.append(f"<tr{kind}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f'<div class="card scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _footer(record: Record, outlook: Outlook | None) -> str:
    header = record.header
    text = (
        f"dynamo-router {package_version()}; recorded by {header.software or 'an unknown version'}."
        f" Hashes stand for {header.block_size} tokens, engines' blocks have"
        f" {header.engine_block_size}. The record has no text, and no id of a request or client."
    )
    return f"<footer>{escape(text)}</footer>"


def _pairs(charts: Iterable[str]) -> str:
    return f'<div class="grid2">{"".join(charts)}</div>'


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    body = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts
    )
    return f'<dl class="card facts">{body}</dl>'


def _distribution(
    values: NDArray[np.generic], weights: NDArray[np.generic] | None = None
) -> list[tuple[float, float]]:
    """Points of the cumulative distribution, of what is above 0."""
    found = np.asarray(values, np.float64)
    weight = np.ones(len(found)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(found, kind="stable")
    below = np.cumsum(weight[order])
    places = np.minimum(np.searchsorted(below, PERCENTILES * below[-1]), len(found) - 1)
    return [
        (float(x), float(share))
        for x, share in zip(found[order][places], PERCENTILES, strict=True)
        if x > 0
    ]


def _reuse_weights(samples: Samples) -> NDArray[np.int64]:
    weights: NDArray[np.int64] = samples.reuse_tokens[samples.reuse_distance > 0]
    return weights


def _finer(sizes: Sequence[int]) -> list[int]:
    """Cache sizes from a small one to the largest, for a curve."""
    return [int(size) for size in np.unique(np.geomspace(1000, sizes[-1], 80).astype(int))]


def _time_unit(span_s: float) -> tuple[float, str]:
    return (1.0, "s") if span_s < 300 else (60.0, "min") if span_s < 4 * 3600 else (3600.0, "h")


def _ratio(ratio: Estimate) -> str:
    text = percent_change(ratio.mean)
    if ratio.low is None or ratio.high is None:
        return text
    span = f"{percent_change(ratio.low)} to {percent_change(ratio.high)}"
    return f'{text}<span class="range">{span}</span>'


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.1%}" if share < 0.995 else f"{share:.0%}"


def _whole_percent(share: float) -> str:
    return f"{share:.0%}"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 10_000:
        return f"{value / 1e3:,.1f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _one_unit(rows: Sequence[Bar]) -> Format:
    """For all of these times; short, so that the longest has room beside its bar."""
    if max((row.value or 0.0 for row in rows), default=0.0) < 1e3:
        return _ms
    return lambda value: f"{value / 1e3:.3g} s"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _si(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _two(one: float | None, other: float | None) -> str:
    return f"{format_number(one, 0)} / {format_number(other, 0)}"
