"""The page of a day: load, engines, answers, every policy, every decision. One HTML file."""

from collections.abc import Sequence
from html import escape

import numpy as np

from ..bench.traffic_report import STYLE, Axis, Series, axis_of, lines, points
from .comparison import BEST, Comparison, decisions_of
from .day import MINUTE_S, DayRun
from .fleet import Fleet

MOST_DECISIONS = 400


def write_page(
    title: str, comparison: Comparison, runs: Sequence[DayRun], best: Sequence[str]
) -> str:
    """The whole page."""
    with_moments = {each.policy: each for each in runs if each.moments}
    shown = with_moments.get("plan") or next(iter(with_moments.values()), None)
    parts = [f"<h1>{escape(title)}</h1>", _load(comparison)]
    if shown is not None:
        parts += [_engines(shown, with_moments, comparison), _answers(with_moments, comparison)]
    parts += [_policies(runs, best), "" if shown is None else _decisions(shown)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _hours(comparison: Comparison) -> Axis:
    return Axis(0.0, comparison.day.end_s / 3600)


def _load(comparison: Comparison) -> str:
    counts = comparison.day.counts(MINUTE_S)
    rate = [(n * MINUTE_S / 3600, count / MINUTE_S) for n, count in enumerate(counts)]
    chart = lines(
        "Arrivals",
        [Series("requests a second", rate)],
        _hours(comparison),
        axis_of(y for _, y in rate),
        x_name="hours",
        y_name="requests a second",
    )
    return f'<div class="grid2">{chart}'


def _steps(run: DayRun, end_s: float, role: str | None = None) -> list[tuple[float, float]]:
    """Engines that serve or start, as a line with steps."""

    def count(fleet: Fleet) -> int:
        return fleet.engines if role is None else int(getattr(fleet, role))

    found: list[tuple[float, float]] = []
    for at, serving, starting, _ in run.moments:
        value = float(count(serving) + count(starting))
        if found:
            found.append((at / 3600, found[-1][1]))
        found.append((at / 3600, value))
    return [*found, (end_s / 3600, found[-1][1])]


def _engines(shown: DayRun, others: dict[str, DayRun], comparison: Comparison) -> str:
    end_s = comparison.day.end_s
    roles = [role for role in ("aggregated", "prefill", "decode") if _has(shown, role)]
    series = [
        Series(f"{shown.policy}: {role}", _steps(shown, end_s, role), 1 + 2 * n)
        for n, role in enumerate(roles)
    ]
    for colour, name in ((2, "static-peak"), (4, "bound-reachable")):
        if name in others and name != shown.policy:
            series.append(Series(name, _steps(others[name], end_s), colour, True))
    chart = lines(
        "Engines",
        series,
        _hours(comparison),
        axis_of(y for each in series for _, y in each.points),
        x_name="hours",
        y_name="engines",
    )
    return f"{chart}</div>"


def _has(run: DayRun, role: str) -> bool:
    return any(getattr(fleet, role) for _, *fleets in run.moments for fleet in fleets)


def _answers(runs: dict[str, DayRun], comparison: Comparison) -> str:
    minutes = (comparison.day.arrivals_s // MINUTE_S).astype(np.int64)
    total = np.bincount(minutes)
    series = []
    for colour, name in ((1, "plan"), (3, "static-mean"), (2, "hpa-kv-tuned")):
        if name in runs:
            good = np.bincount(minutes, runs[name].good)
            line = [
                (n * MINUTE_S / 3600, float(good[n] / total[n]))
                for n in range(len(total))
                if total[n]
            ]
            series.append(Series(name, line, colour))
    if not series:
        return ""
    share = Axis(0.0, 1.0)
    chart = lines(
        "Good answers by minute",
        series,
        _hours(comparison),
        share,
        x_name="hours",
        y_name="share",
    )
    return f'<div class="grid2">{chart}{_front(list(runs.values()))}</div>'


def _front(runs: Sequence[DayRun]) -> str:
    groups = {
        "planner": [each for each in runs if each.policy == "plan"],
        "others": [each for each in runs if each.policy[:5] not in ("plan", "bound")],
        "bounds": [each for each in runs if each.policy.startswith("bound")],
    }
    series = [
        Series(name, [(each.engine_hours, each.attainment) for each in found], colour)
        for colour, (name, found) in zip((1, 2, 4), groups.items(), strict=True)
        if found
    ]
    return points(
        "Answers beside engine hours",
        series,
        axis_of(x for each in series for x, _ in each.points),
        axis_of((y for each in series for _, y in each.points), zero=False),
        x_name="engine hours",
        y_name="share of good answers",
    )


def _policies(runs: Sequence[DayRun], best: Sequence[str]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in ("policy", "good", "engine hours", "changes", "aborted", "worst 5 min", "")
    )
    strong = ' class="strong"'
    body = "".join(
        f"<tr{strong if each.policy in best else ''}><td>{escape(each.policy)}</td>"
        f"<td>{each.attainment:.1%}</td><td>{each.engine_hours:.2f}</td><td>{each.changes}</td>"
        f"<td>{each.aborted_streams}</td><td>{each.worst_5_min:.1%}</td>"
        f"<td>{escape(each.settings)}</td></tr>"
        for each in runs
    )
    table = f'<div class="scroll card"><table><tr>{head}</tr>{body}</table></div>'
    return f"<h2>Policies</h2>{table}<p>Bold: {BEST}.</p>"


def _decisions(run: DayRun) -> str:
    found = decisions_of(run)
    body = "".join(
        f"<tr><td>{each.at / 60:.1f} min</td><td>{each.kind}</td>"
        f"<td>{escape(str(each.before))}</td>"
        f"<td>{escape(str(each.after))}</td>"
        f'<td class="words">{escape("; ".join(each.reasons))}</td></tr>'
        for each in found[:MOST_DECISIONS]
    )
    more = len(found) - MOST_DECISIONS
    rest = f"<p>{more} more are in the JSON.</p>" if more > 0 else ""
    head = "<tr><th>at</th><th>kind</th><th>from</th><th>to</th>"
    head += '<th class="words">reasons</th></tr>'
    title = f"<h2>Decisions of {escape(run.policy)}</h2>"
    return f'{title}<div class="scroll card"><table>{head}{body}</table></div>{rest}'
