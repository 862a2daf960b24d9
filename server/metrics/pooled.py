"""The metrics of several pools as one page: each family once, its samples labelled by pool."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client.metrics_core import Metric

from .page import MetricsPage, Source
from .table import Table

Labels = Mapping[str, str]


def pooled_metrics(pages: Callable[[], Iterable[tuple[Labels, MetricsPage]]]) -> Source:
    """The families of the pages, each with labels of its own, which its samples get."""

    def collect() -> Iterator[Metric | Table | None]:
        tables: dict[str, Table] = {}
        metrics: dict[str, Metric] = {}
        for labels, page in pages():
            text = ",".join(f'{name}="{escaped_label(value)}"' for name, value in labels.items())
            for family in page.steps():
                yield None
                if isinstance(family, Table):
                    tables[family.name] = _joined(tables.get(family.name), family, text)
                elif family is not None:
                    _add(metrics, family, labels)
        yield from tables.values()
        yield from metrics.values()

    return collect


def _joined(before: Table | None, family: Table, labels: str) -> Table:
    if not labels and before is None:
        return family
    named = [",".join(filter(None, (labels, each))) for each in family.labels]
    values: list[Any] = list(family.values)
    if before is None:
        return replace(family, labels=named, values=values)
    return replace(before, labels=[*before.labels, *named], values=[*before.values, *values])


def _add(metrics: dict[str, Metric], family: Metric, labels: Labels) -> None:
    known = metrics.get(family.name)
    if known is None:
        known = Metric(family.name, family.documentation, family.type, family.unit)
        metrics[family.name] = known
    samples = family.samples
    if labels:
        samples = [sample._replace(labels={**labels, **sample.labels}) for sample in samples]
    known.samples += samples


def escaped_label(value: str) -> str:
    """As a label's value is written."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
