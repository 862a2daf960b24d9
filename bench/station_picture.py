"""The way of one prompt through the stations of the prefill queue, as a picture (SVG)."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..process.settings import bad_setting
from .stations import ROLES, Passed

WIDTH = 840
_TIME, _COLUMNS, _TEXT, _FUNCTION = 78, (110, 172, 234), 284, 580
"""Where the columns are: times end at the first, the others begin there or have their middle."""
_TOP, _ROW, _GAP = 76, 19, 12
_COLOURS = ("#1f6feb", "#c2410c", "#0f8a5f")
_STYLE = (
    "svg{background:#fff}text{font-size:12px;fill:#16191d}.soft{fill:#5a626d}"
    ".place{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:11px}"
    ".name{font-weight:bold}.title{font-size:15px;font-weight:bold}"
    ".column{stroke:#e3e6ea;stroke-width:2}.way{fill:none;stroke:#8b95a3;stroke-width:1.5}"
)


def draw_stations(way: Sequence[Passed], title: str, what: str) -> str:
    """Its SVG. Times are those since the first station."""
    rows: list[str] = []
    points: list[tuple[int, float]] = []
    y, before = float(_TOP), ""
    for passed in way:
        station = passed.station
        if station.name != before:
            before = station.name
            y += _GAP + _ROW
            rows.append(_text(_TEXT, y, f"{station.name} {station.word}", "name"))
        y += _ROW
        column = ROLES.index(passed.place.role)
        points.append((column, y - 4))
        ms = (passed.at_s - way[0].at_s) * 1e3
        rows.append(_text(_TIME, y, f"{ms:.2f}", "soft", "end"))
        rows.append(_text(_TEXT, y, passed.place.file, "place"))
        rows.append(_text(_FUNCTION, y, passed.place.function, "place"))
    height = round(y + 24)
    heads = [_text(24, 26, title, "title"), _text(24, 46, what, "soft")]
    heads.append(_text(_TIME, _TOP, "ms", "soft", "end"))
    for role, x in zip(ROLES, _COLUMNS, strict=True):
        heads.append(f'<line class="column" x1="{x}" y1="{_TOP + 8}" x2="{x}" y2="{height - 12}"/>')
        heads.append(_text(x, _TOP, role, "", "middle"))
    line = " ".join(f"{_COLUMNS[column]},{at:g}" for column, at in points)
    dots = [
        f'<circle cx="{_COLUMNS[column]}" cy="{at:g}" r="4" fill="{_COLOURS[column]}"/>'
        for column, at in points
    ]
    body = "\n".join([*heads, f'<polyline class="way" points="{line}"/>', *dots, *rows])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' font-family="Helvetica, Arial, sans-serif" role="img" aria-label="{escape(title)}">\n'
        f"<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def stations_content(way: Sequence[Passed]) -> list[dict[str, Any]]:
    """The same, for JSON."""
    return [
        {
            "station": passed.station.name,
            **passed.place._asdict(),
            "ms": round((passed.at_s - way[0].at_s) * 1e3, 3),
            "pid": passed.pid,
        }
        for passed in way
    ]


def write_picture(path: str, svg: str) -> None:
    """ConfigError if it cannot be written."""
    try:
        Path(path).write_text(svg)
    except OSError as error:
        raise bad_setting("picture", f"cannot write {path}: {error.strerror or error}") from None


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{at}>{escape(words)}</text>'
