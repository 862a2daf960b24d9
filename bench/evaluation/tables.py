"""An evaluation as tables, the worst cell first, and as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from ..results import Column, format_number, new_table, rows_table
from .cells import EvaluationCell
from .verdict import COMPARED, CellVerdict, FigureSummary, summarise_figure

HOW_TO_READ = (
    "Ratios are the policy's mean over that of the best baseline, for each figure and cell the one"
    " of all variants that is best there. Above 1 is a gain in goodput and capacity, below 1 in"
    " all else. Goodput is by the relative objective; below 0.05 it counts as 0.05. In brackets:"
    " 95 % intervals, Student's t over paired seeds in a cell (seeds draw the traffic), a two-level"
    " bootstrap over cells and seeds for geometric means."
)


def cells_table(verdicts: Sequence[CellVerdict[Any]], policy: str) -> Table:
    """A row for each cell, in the order given, with the baseline that is best at the worst."""
    table = new_table("cell", "worst at", title=f"{policy}, worst cells first")
    shown = [key for key in COMPARED if any(key in each.figures for each in verdicts)]
    for key in shown:
        table.add_column(COMPARED[key], justify="right", no_wrap=True)
    for heading in ("goodput", "TTFT ms", "failed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in verdicts:
        worst = each.worst_figure
        rival = each.figures[worst].rival if worst in each.figures else "-"
        table.add_row(
            str(each.cell),
            f"{COMPARED[worst]}, {rival}",
            *(_ratio(each, key, interval=key == worst) for key in shown),
            f"{_beside(each, 'goodput_relative', 3)}",
            f"{_beside(each, 'ttft', 0)}",
            format_number(each.failed, 0),
        )
    return table


def summary_table(verdicts: Sequence[CellVerdict[Any]], title: str) -> Table:
    """A row for each figure: the worst cell, the median one, the best, and the geometric mean."""
    found = {name: summarise_figure(key, verdicts) for key, name in COMPARED.items()}
    rows = [
        {
            **each._asdict(),
            "figure": name,
            "mean": _with_interval(each.geometric_mean, each.low, each.high),
        }
        for name, each in found.items()
        if each is not None
    ]
    columns = (
        Column("figure", "figure"),
        Column("worst", "worst", 3),
        Column("median", "median", 3),
        Column("best", "best", 3),
        Column("geometric mean", "mean"),
        Column("cells", "cells", 0),
        Column("worst cell", "worst_cell"),
    )
    return rows_table(rows, columns, title)


def groups_table(verdicts: Sequence[CellVerdict[EvaluationCell]]) -> Table:
    """Geometric means by family where no condition is given, by model error and by condition."""
    groups: dict[str, list[CellVerdict[EvaluationCell]]] = {}
    for each in verdicts:
        cell = each.cell
        groups.setdefault(cell.error or cell.condition or cell.family, []).append(each)
    rows = [
        {"cells": name}
        | {
            key: found.geometric_mean
            for key in COMPARED
            if (found := summarise_figure(key, members)) is not None
        }
        for name, members in groups.items()
    ]
    columns = (Column(name, key, 3) for key, name in COMPARED.items())
    return rows_table(rows, [Column("cells", "cells"), *columns], "geometric means")


def evaluation_content(verdicts: Sequence[CellVerdict[Any]]) -> dict[str, Any]:
    """For JSON: the summary of every figure, and every cell with every figure, worst first."""
    return {
        "summary": {
            key: _summary_content(found)
            for key in COMPARED
            if (found := summarise_figure(key, verdicts)) is not None
        },
        "cells": [
            {
                "cell": each.cell.content,
                "seeds": list(each.seeds),
                "worst_figure": each.worst_figure,
                "behind": each.behind,
                "failed": each.failed,
                "figures": {key: found._asdict() for key, found in each.figures.items()},
            }
            for each in verdicts
        ],
    }


def _summary_content(found: FigureSummary) -> dict[str, Any]:
    cells = {key: getattr(found, key).content for key in ("worst_cell", "best_cell")}
    return {**found._asdict(), **cells}


def _ratio(verdict: CellVerdict[Any], key: str, *, interval: bool) -> str:
    found = verdict.figures.get(key)
    if found is None or found.ratio is None:
        return "-"
    if not interval or found.low is None or found.high is None:
        return f"{found.ratio:.3f}"
    return _with_interval(found.ratio, found.low, found.high)


def _with_interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _beside(verdict: CellVerdict[Any], key: str, digits: int) -> str:
    found = verdict.figures.get(key)
    if found is None:
        return "-"
    return f"{format_number(found.own, digits)} / {format_number(found.best, digits)}"
