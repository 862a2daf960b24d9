"""What sources of the metrics page are made of: families by name, help and value."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import ParamSpec, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from .page import Source
from .table import Table

P = ParamSpec("P")
Row: TypeAlias = tuple[str, str, float]
"""The end of a family's name, its help, its one value."""


def source(read: Callable[P, Iterable[Metric | Table | None]]) -> Callable[P, Source]:
    """A source of families that is first given what it looks at: `read(watched)()`."""

    def watching(*args: P.args, **kwargs: P.kwargs) -> Source:
        return partial(read, *args, **kwargs)

    return watching


def counters(prefix: str, *rows: Row) -> Iterator[Metric]:
    for name, help, value in rows:
        yield CounterMetricFamily(prefix + name, help, value)


def gauges(prefix: str, *rows: Row) -> Iterator[Metric]:
    for name, help, value in rows:
        yield GaugeMetricFamily(prefix + name, help, value)


def counter_by(label: str, name: str, help: str, values: Mapping[str, float]) -> Metric:
    """One family with a sample for each value of a label."""
    return _labelled(CounterMetricFamily(name, help, labels=[label]), values)


def gauge_by(label: str, name: str, help: str, values: Mapping[str, float]) -> Metric:
    """As `counter_by`."""
    return _labelled(GaugeMetricFamily(name, help, labels=[label]), values)


def _labelled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]
) -> Metric:
    for value_of_label, value in values.items():
        family.add_metric([value_of_label], value)
    return family
