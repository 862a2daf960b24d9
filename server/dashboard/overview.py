"""Overview: what a page shows of a whole router: its history, its HTTP errors, version and age."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from ...base.clock import Clock
from ...base.package_version import package_version
from ..metrics import HttpAnswers, HttpFault
from .history import ProcessHistory, Row, layout, merged_rows

MOST_FAULTS = 24


class OverviewQuestion(msgspec.Struct, array_like=True):
    """Of which model, empty for all, and the newest step that the page knows."""

    model: str = ""
    since: int = -1


class ProcessOverview(msgspec.Struct, array_like=True):
    """What one process answers."""

    now: float
    uptime_s: float
    models: list[str]
    rows: list[Row]
    faults: list[HttpFault]


class Overview:
    """Of this process."""

    def __init__(self, clock: Clock, history: ProcessHistory, http: HttpAnswers) -> None:
        self._now = clock.now
        self._history, self._http = history, http

    def read(self, question: OverviewQuestion) -> ProcessOverview:
        history = self._history
        rows = history.rows(question.model, question.since)
        faults = self._http.faults(MOST_FAULTS)
        return ProcessOverview(self._now(), history.uptime_s, history.models, rows, faults)


ReadOverview = Callable[[OverviewQuestion], Awaitable[dict[str, Any]]]
"""The overview of the router, whatever processes it has, as JSON."""


def merged_overview(
    found: Iterable[ProcessOverview], processes: int, missing: int
) -> dict[str, Any]:
    """The overviews of `processes` as one, without the `missing` ones that did not answer. The
    first is that of the process that was asked."""
    every = list(found)
    faults: dict[tuple[str, str, int], HttpFault] = {}
    for fault in (fault for each in every for fault in each.faults):
        key = fault[:3]
        known = faults.get(key)
        if known is not None:
            last = max(known, fault, key=lambda each: each.ended)
            fault = last._replace(answers=known.answers + fault.answers)
        faults[key] = fault
    newest = sorted(faults.values(), key=lambda fault: fault.ended, reverse=True)
    return {
        "now": every[0].now,
        "version": package_version(),
        "uptime_s": max(each.uptime_s for each in every),
        "processes": processes,
        "missing": missing,
        "models": sorted({model for each in every for model in each.models}),
        "layout": layout(),
        "rows": merged_rows(each.rows for each in every),
        "http_errors": [fault._asdict() for fault in newest[:MOST_FAULTS]],
    }
