"""HTTP answers of all listeners of a process, by route, model and status."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ...base.request_record import LEFT, RequestRecord
from ...transport.http1 import UNKNOWN_ROUTE
from .pooled import escaped_label
from .table import Table

STATUSES = (200, 400, 404, 429, LEFT, 500, 503)
"""Those of a route that models answer which are there from the start."""
MOST_MODELS = 32
"""Models that have them there from the start."""
MOST_SERIES = 4096
_NO_ROUTE = ("", UNKNOWN_ROUTE)
OTHER = "other"
"""Stands for the models of answers that came once the series were used up."""

CLASSES = 4
"""Of answers: well, the client's fault, ours or an engine's, not sent."""
MOST_WORDS = 200
"""Characters that are kept of an error."""

Key = tuple[str, str, int]


class HttpFault(NamedTuple):
    """Answers of one route and model that were the same error: how many, and the last one."""

    route: str
    model: str
    status: int
    answers: int
    ended: float
    """monotonic time"""
    error: str


def answer_class(status: int) -> int:
    """Which of the CLASSES a status belongs to."""
    if status == LEFT:
        return 3
    return 0 if status < 400 else 1 if status < 500 else 2


class HttpAnswers:
    """Counts by route, model and status: labels that exist, whatever clients ask for."""

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}
        self._last: dict[Key, tuple[float, str]] = {}  # of errors: when, and why
        self._routes: dict[str, None] = {}
        self._model_routes: dict[str, None] = {}
        self._models: Callable[[], Iterable[str]] = tuple

    def count(self, record: RequestRecord) -> None:
        """It has ended."""
        key = record.route, record.model, record.status
        try:
            self._counts[key] += 1
        except KeyError:
            key = self._count_first(key)
        if record.status >= 400 and record.status != LEFT:
            self._last[key] = time.monotonic(), record.error[:MOST_WORDS]

    def _count_first(self, key: Key) -> Key:
        if len(self._counts) >= MOST_SERIES and key[1]:
            key = key[0], OTHER, key[2]
        self._counts[key] = self._counts.get(key, 0) + 1
        return key

    def by_class(self) -> dict[str, list[int]]:
        """Answers to clients' requests until now, by model, each of the CLASSES: no scrapes and
        probes. The models beyond MOST_MODELS are one."""
        found: dict[str, list[int]] = {}
        for (route, model, status), count in self._counts.items():
            if route.startswith("/v1/") or route in self._model_routes or route in _NO_ROUTE:
                name = model if model in found or len(found) < MOST_MODELS else OTHER
                found.setdefault(name, [0] * CLASSES)[answer_class(status)] += count
        return found

    def faults(self, most: int) -> list[HttpFault]:
        """Errors by route, model and status, the newest first."""
        newest = sorted(self._last.items(), key=lambda item: item[1][0], reverse=True)[:most]
        return [HttpFault(*key, self._counts[key], *last) for key, last in newest]

    def expect(self, routes: Iterable[str]) -> None:
        """Show these routes of a listener from now on: methods and paths."""
        self._routes.update(dict.fromkeys(_paths(routes)))

    def expect_models(self, routes: Iterable[str], models: Callable[[], Iterable[str]]) -> None:
        """The same of routes that models answer, and of each of those that there are."""
        self._model_routes.update(dict.fromkeys(_paths(routes)))
        self._models = models

    def collect(self) -> Iterator[Table]:
        counts: dict[Key, int] = {(path, "", 200): 0 for path in self._routes}
        for model in ("", *list(self._models())[:MOST_MODELS]):
            for path in self._model_routes:
                counts.update({(path, model, status): 0 for status in STATUSES})
        counts |= self._counts
        labels = [
            f'model="{escaped_label(model)}",route="{escaped_label(route)}",status="{status}"'
            for route, model, status in counts
        ]
        yield Table(
            name="dynamo_router_http_requests",
            kind="counter",
            help="HTTP requests that ended, at every HTTP port, by path with placeholders "
            "(unknown: no such path), model (empty: none that exists) and status of the "
            "answer's head; 499: none was sent.",
            labels=labels,
            values=list(counts.values()),
        )


def _paths(routes: Iterable[str]) -> Iterator[str]:
    return (route.partition(" ")[2] for route in routes)
