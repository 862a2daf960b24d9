"""Tables of results: columns that are read off rows of figures, and the spread of rounds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from .output import format_number, new_table


@dataclass(frozen=True)
class Column:
    """A figure of each row. `form` shows it: as text, by a number of decimals, or as it says."""

    heading: str
    key: str
    """"a.b" is b of a; of a figure that has a spread it is the median"""
    form: int | Callable[[Any], str] = str

    def cell(self, row: Mapping[str, Any]) -> str:
        """Of one row; "-" if it has no such figure."""
        return self.show(figure_of(row, self.key))

    def show(self, value: Any) -> str:
        """A value of this figure."""
        if value is None:
            return "-"
        return format_number(value, self.form) if isinstance(self.form, int) else self.form(value)


def figure_of(row: Mapping[str, Any], key: str) -> Any:
    """The figure of a row under this key, or its median; None if there is none."""
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value.get("median") if isinstance(value, Mapping) else value


def millions(value: float) -> str:
    return f"{value / 1e6:,.2f} M"


def percent(value: float) -> str:
    return f"{value:.0%}"


def rows_table(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], title: str | None = None
) -> Table:
    """A line for each row; figures are aligned to the right, text to the left."""
    table = new_table(title=title)
    for column in columns:
        table.add_column(column.heading, justify="left" if column.form is str else "right")
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table


def spread_table(
    title: str, figures: Mapping[str, Mapping[str, float]], lines: Iterable[Column]
) -> Table:
    """A line for each figure that `lines` name: its median over the rounds, the least, the most."""
    table = new_table(title, "median", "least", "most")
    for line in lines:
        spread = figures[line.key]
        table.add_row(line.heading, *(line.show(spread[each]) for each in ("median", "min", "max")))
    return table


def facts_table(title: str, facts: Mapping[str, Any]) -> Table:
    """A line for each fact; those of a mapping have its name before theirs."""
    table = new_table("", title=title)
    table.add_column("", justify="right")
    for name, value in facts.items():
        for inner, cell in value.items() if isinstance(value, Mapping) else [("", value)]:
            shown = format_number(cell, 2) if isinstance(cell, float) else str(cell)
            table.add_row(f"{name} {inner}".replace("_", " "), shown)
    return table
