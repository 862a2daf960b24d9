"""The metrics of the processes of one router as one page.

Counters, histograms and summaries are sums over the processes. Everything else describes a process:
its samples have the label `front`, the number of the process.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from .table import SLICE_S, Table

SUMMED = frozenset(("counter", "histogram", "gaugehistogram", "summary"))


class Family(msgspec.Struct, array_like=True):
    """A family as processes send it to each other: rows of a Table, or samples of a Metric."""

    name: str
    kind: str
    help: str
    rows: list[tuple[str, float | tuple[float, float]]] = []
    samples: list[tuple[str, dict[str, str], float]] | None = None


class FrontPages(NamedTuple):
    """The families of the other processes, by their numbers, None of one that does not answer in
    time; and this process' own number."""

    number: int
    others: Mapping[int, Sequence[Family] | None]


async def families_of(families: Iterable[Metric | Table | None]) -> list[Family]:
    """What this process sends the others; the event loop goes on meanwhile."""
    sent, turn = list[Family](), time.perf_counter()
    for family in families:
        if isinstance(family, Table):
            rows = list(zip(family.labels, family.values, strict=True))
            sent.append(Family(family.name, family.kind, family.help, rows))
        elif family is not None:
            samples = [(each.name, each.labels, float(each.value)) for each in family.samples]
            sent.append(Family(family.name, family.type, family.documentation, samples=samples))
        if time.perf_counter() - turn >= SLICE_S:
            await asyncio.sleep(0)
            turn = time.perf_counter()
    return sent


def merged(
    own: Iterable[Metric | Table | None], pages: FrontPages
) -> Iterator[Metric | Table | None]:
    """The families of all processes; None where others may have a turn."""
    others: dict[str, dict[int, Family]] = {}
    up = GaugeMetricFamily(
        "dynamo_router_front_up",
        "Whether a process of this router answered and is on this page.",
        labels=("front",),
    )
    up.add_metric((str(pages.number),), 1)
    for number, families in pages.others.items():
        up.add_metric((str(number),), 0 if families is None else 1)
        for family in families or ():
            others.setdefault(family.name, {})[number] = family
    yield up
    for mine in own:
        if mine is None:
            yield None
        elif isinstance(mine, Table):
            yield _merged_table(mine, pages.number, others.pop(mine.name, {}))
        else:
            yield _merged_metric(mine, pages.number, others.pop(mine.name, {}))
        yield None
    for name, found in others.items():  # nothing of them has happened here
        first = next(iter(found.values()))
        if first.samples is None:
            kind: Any = first.kind
            yield _merged_table(Table(name, kind, first.help, [], []), pages.number, found)
        else:
            yield _merged_metric(Metric(name, first.help, first.kind), pages.number, found)


def _merged_table(mine: Table, number: int, others: Mapping[int, Family]) -> Table:
    kind: Literal["gauge", "counter", "summary"] = mine.kind
    if kind not in SUMMED:
        rows = {_of_front_text(labels, number): value for labels, value in _rows(mine)}
        for front, family in others.items():
            rows |= {_of_front_text(labels, front): value for labels, value in family.rows}
    else:
        rows = dict(_rows(mine))
        for family in others.values():
            for labels, value in family.rows:
                known: Any = rows.get(labels)
                more: Any = value
                if known is None:
                    rows[labels] = more
                elif kind == "summary":
                    rows[labels] = (known[0] + more[0], known[1] + more[1])
                else:
                    rows[labels] = known + more
    return replace(mine, labels=list(rows), values=list(rows.values()))


def _merged_metric(mine: Metric, number: int, others: Mapping[int, Family]) -> Metric:
    found = Metric(mine.name, mine.documentation, mine.type, mine.unit)
    if mine.type not in SUMMED:
        found.samples = [_of_front(sample, number) for sample in mine.samples]
        for front, family in others.items():
            found.samples += [_of_front(Sample(*each), front) for each in family.samples or ()]
        return found
    summed: dict[tuple[Any, ...], Sample] = {}
    theirs = (Sample(*each) for family in others.values() for each in family.samples or ())
    for sample in (*mine.samples, *theirs):
        key = (sample.name, *sorted(sample.labels.items()))
        known = summed.get(key)
        if known is None:
            summed[key] = sample
        elif not sample.name.endswith("_created"):
            summed[key] = known._replace(value=known.value + sample.value)
    found.samples = list(summed.values())
    return found


def _rows(table: Table) -> Iterable[tuple[str, Any]]:
    return zip(table.labels, table.values, strict=True)


def _of_front(sample: Sample, number: int) -> Sample:
    return sample._replace(labels={"front": str(number), **sample.labels})


def _of_front_text(labels: str, number: int) -> str:
    return f'front="{number}",{labels}' if labels else f'front="{number}"'
