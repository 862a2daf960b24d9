"""Charts as SVG, small enough to stand in a page: lines, bars with intervals, points.

Colours are classes of the page's style sheet, so that a chart is as light or dark as its page.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 42
TICKS = 5
LINE = 16
MOST_POINTS = 240
"""Of a line: more are no finer on a page."""

Format = Callable[[float], str]


class Series(NamedTuple):
    """A line, or a cloud of points: its name, its points, and which colour of the page it has."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 1
    dashed: bool = False


class Mark(NamedTuple):
    """A line across a chart at one x, with a word on it."""

    x: float
    name: str


class Bar(NamedTuple):
    """A value with its interval; `strong`: the one that others are compared with."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Axis:
    """The values of an axis, from where to where, and how they are written."""

    low: float
    high: float
    log: bool = False
    show: Format = lambda value: f"{value:g}"

    def place(self, value: float) -> float:
        """0 to 1; outside of the axis its end."""
        low, high = self._at(self.low), self._at(self.high)
        if high <= low:
            return 0.5
        return min(1.0, max(0.0, (self._at(max(value, self.low)) - low) / (high - low)))

    def ticks(self) -> list[float]:
        """Round values, some five."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            found = [10.0**power for power in range(first, last + 1)]
            if len(found) < 4:
                found = [step * each for each in found for step in (1, 2, 5)]
            every = -(-len(found) // 7)
            return [each for each in found[::every] if self.low <= each <= self.high * 1.0001]
        step = _round_step((self.high - self.low) / TICKS)
        first = math.ceil(self.low / step - 1e-9)
        count = int((self.high - first * step) / step + 1e-9) + 1
        return [(first + n) * step for n in range(max(0, count))]

    def _at(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.log else value


def axis_of(
    values: Iterable[float],
    *,
    log: bool = False,
    zero: bool = True,
    top: float | None = None,
    show: Format = lambda value: f"{value:g}",
) -> Axis:
    """An axis that has these values; `zero`: it begins at 0, unless it is logarithmic."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(known), max(known)) if known else (0.1 if log else 0.0, 1.0)
    if log:
        low, high = max(low, high / 1e6), max(high, low * 1.01)
        return Axis(low, high, True, show)
    low = 0.0 if zero else low
    high = high if top is None else top
    return Axis(low, high if high > low else low + 1.0, False, show)


def lines(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    x_name: str,
    y_name: str,
    marks: Sequence[Mark] = (),
) -> str:
    """A line for each series, with a legend where there are several."""
    body = [_grid(x, y, x_name, y_name), *(_mark(each, x, row) for row, each in enumerate(marks))]
    for each in series:
        points = _thinned(each.points)
        path = " ".join(f"{_x(x, px):.1f},{_y(y, py):.1f}" for px, py in points)
        dashed = " dashed" if each.dashed else ""
        body.append(f'<polyline class="line s{each.colour}{dashed}" points="{path}"/>')
    return _figure(title, body, _legend(series))


def points(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    x_name: str,
    y_name: str,
    diagonal: bool = False,
) -> str:
    """A dot for each point. `diagonal`: the line where both are equal."""
    body = [_grid(x, y, x_name, y_name)]
    if diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        body.append(_line("mark", _x(x, low), _y(y, low), _x(x, high), _y(y, high)))
    for each in series:
        kind = f'class="dot s{each.colour}" r="2.6"'
        body += [
            f'<circle {kind} cx="{_x(x, px):.1f}" cy="{_y(y, py):.1f}"/>' for px, py in each.points
        ]
    return _figure(title, body, _legend(series))


def bars(title: str, rows: Sequence[Bar], *, show: Format, name: str) -> str:
    """A horizontal bar for each row, with a whisker for its interval."""
    known = [row for row in rows if row.value is not None]
    axis = axis_of(value for row in known for value in (row.value, row.high) if value is not None)
    row_height, left = 30, 150
    height = 12 + row_height * len(rows) + 30
    span = WIDTH - left - 78

    def at(value: float) -> float:
        return left + span * axis.place(value)

    body = []
    for tick in axis.ticks():
        body.append(_line("grid", at(tick), 6, at(tick), height - 32))
        body.append(_text(at(tick), height - 18, show(tick), "tick middle"))
    body.append(_text(left + span / 2, height - 3, name, "tick middle"))
    for place, row in enumerate(rows):
        y = 10 + place * row_height
        body.append(_text(left - 8, y + 14, row.name, f"label end{' strong' * row.strong}"))
        if row.value is None:
            body.append(_text(left + 4, y + 14, "not known", "tick"))
            continue
        kind, end = f"bar s{1 if row.strong else 2}", at(row.value)
        width = max(1.0, end - left)
        size = f'width="{width:.1f}" height="18" rx="3"'
        body.append(f'<rect class="{kind}" x="{left}" y="{y}" {size}/>')
        if row.low is not None and row.high is not None and row.high > row.low:
            low, high = at(row.low), at(row.high)
            body.append(_line("whisker", low, y + 9, high, y + 9))
            body += [_line("whisker", each, y + 5, each, y + 13) for each in (low, high)]
            end = max(end, high)
        body.append(_text(end + 6, y + 14, show(row.value), "value"))
    return _figure(title, body, "", height)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _figure(title: str, body: Iterable[str], legend: str, height: int = HEIGHT) -> str:
    name = escape(title)
    size = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}"'
    drawn = f"<svg {size}>{''.join(body)}</svg>"
    return f"<figure><figcaption>{name}</figcaption>{legend}{drawn}</figure>"


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    words = (
        f'<span><i class="key s{each.colour}{" dashed" if each.dashed else ""}"></i>'
        f"{escape(each.name)}</span>"
        for each in series
    )
    return f'<div class="legend">{"".join(words)}</div>'


def _grid(x: Axis, y: Axis, x_name: str, y_name: str) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y.ticks():
        at = _y(y, tick)
        parts.append(_line("grid", LEFT, at, right, at))
        parts.append(_text(LEFT - 6, at + 4, y.show(tick), "tick end"))
    for tick in x.ticks():
        at = _x(x, tick)
        parts.append(_line("grid", at, TOP, at, bottom))
        parts.append(_text(at, bottom + 16, x.show(tick), "tick middle"))
    parts.append(_line("axis", LEFT, bottom, right, bottom))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 6, x_name, "tick middle"))
    middle = (TOP + bottom) / 2
    turn = f' transform="rotate(-90 12 {middle:.1f})"'
    parts.append(_text(12, middle, y_name, "tick middle", turn))
    return "".join(parts)


def _mark(mark: Mark, x: Axis, row: int) -> str:
    """Its name in a row of its own: marks may be near each other."""
    at = _x(x, mark.x)
    end = at > WIDTH * 0.7
    kind, shift = ("tick end", -5) if end else ("tick", 5)
    line = _line("mark", at, TOP, at, HEIGHT - BOTTOM)
    return line + _text(at + shift, HEIGHT - BOTTOM - 8 - LINE * row, mark.name, kind)


def _text(x: float, y: float, text: str, kind: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def _x(axis: Axis, value: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * axis.place(value)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * axis.place(value)


def _thinned(found: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(found) <= MOST_POINTS:
        return found
    step = (len(found) - 1) / (MOST_POINTS - 1)
    return [found[round(place * step)] for place in range(MOST_POINTS)]


def _round_step(step: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(step, 1e-12)))
    return next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= step * 0.999)
