"""HTTP answers of all listeners of a process, by route, model and status."""

from collections.abc import Callable, Iterable, Iterator

from ...base.request_record import LEFT, RequestRecord
from .pooled import escaped_label
from .table import Table

STATUSES = (200, 400, 404, 429, LEFT, 500, 503)
"""Those of a route that models answer which are there from the start."""
MOST_MODELS = 32
"""Models that have them there from the start."""
MOST_SERIES = 4096
OTHER = "other"
"""Stands for the models of answers that came when there were so many series."""

Key = tuple[str, str, int]


class HttpAnswers:
    """Counts by route, model and status: labels that exist, whatever clients ask for."""

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}
        self._routes: dict[str, None] = {}
        self._model_routes: dict[str, None] = {}
        self._models: Callable[[], Iterable[str]] = tuple

    def count(self, record: RequestRecord) -> None:
        """It has ended."""
        key = record.route, record.model, record.status
        try:
            self._counts[key] += 1
        except KeyError:
            self._count_first(key)

    def _count_first(self, key: Key) -> None:
        if len(self._counts) >= MOST_SERIES and key[1]:
            key = key[0], OTHER, key[2]
        self._counts[key] = self._counts.get(key, 0) + 1

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
