"""FrontTotals: what all fronts have counted, as if one process had."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from ..metrics import Source, Table, WorkerCounts
from .messages import Family, Totals, WorkerTotals

_GROWING = ("_total", "_bucket", "_count", "_sum")
Key = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and its labels."""


class FrontTotals:
    """Sums over fronts, those that are gone among them. Pure.

    Counters and histograms of a front grow from 0, anew in each process in its place (`token`);
    gauges are those of the fronts that are there.
    """

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._grown: dict[str, dict[Key, float]] = {}  # by family
        self._heard: dict[int, tuple[str, dict[tuple[str, Key], float]]] = {}
        self._gauges: dict[int, dict[tuple[str, Key], float]] = {}
        self._workers: dict[int, dict[int, WorkerTotals]] = {}  # by front and worker

    def take(
        self, front: int, token: str, totals: Totals, counts: Callable[[int], WorkerCounts | None]
    ) -> None:
        """What a front tells of itself; what is new of it is added to the workers' `counts`."""
        before: dict[tuple[str, Key], float] = {}
        if self._heard.get(front, ("", before))[0] == token:
            before = self._heard[front][1]
        else:
            self._workers.pop(front, None)
        heard: dict[tuple[str, Key], float] = {}
        gauges: dict[tuple[str, Key], float] = {}
        for family in totals.families:
            self._families.setdefault(
                family.name, Family(family.name, family.kind, family.help, [])
            )
            for name, labels, value in family.samples:
                key = family.name, (name, tuple(sorted(labels.items())))
                if family.kind == "gauge" or not name.endswith(_GROWING):
                    gauges[key] = value
                    continue
                heard[key] = value
                grown = self._grown.setdefault(family.name, {})
                grown[key[1]] = grown.get(key[1], 0.0) + value - before.get(key, 0.0)
        self._heard[front], self._gauges[front] = (token, heard), gauges
        self._count_workers(front, totals.workers, counts)

    def leave(self, front: int) -> None:
        """A front is not there now."""
        self._gauges.pop(front, None)

    def added_to(self, page: Source) -> Source:
        """The families of a source of metrics, with what the fronts have of them."""

        def collect() -> Iterator[Metric | Table | None]:
            shown = set[str]()
            for family in page():
                if isinstance(family, Metric) and family.name in self._families:
                    shown.add(family.name)
                    yield self._with(family)
                else:
                    yield family
            for name in self._families.keys() - shown:
                yield self._with(Metric(name, self._families[name].help, self._families[name].kind))

        return collect

    def _with(self, family: Metric) -> Metric:
        sums: dict[Key, float] = {}
        for sample in family.samples:
            sums[sample.name, tuple(sorted(sample.labels.items()))] = float(sample.value)
        for key, value in self._grown.get(family.name, {}).items():
            sums[key] = sums.get(key, 0.0) + value
        for gauges in self._gauges.values():
            for (name, key), value in gauges.items():
                if name == family.name:
                    sums[key] = sums.get(key, 0.0) + value
        merged = Metric(family.name, family.documentation, family.type)
        merged.samples = [
            Sample(name, dict(labels), value) for (name, labels), value in sums.items()
        ]
        return merged

    def _count_workers(
        self,
        front: int,
        told: Iterable[WorkerTotals],
        counts: Callable[[int], WorkerCounts | None],
    ) -> None:
        before = self._workers.get(front, {})
        self._workers[front] = {each.worker_id: each for each in told}
        for each in told:
            known = counts(each.worker_id)
            if known is None:
                continue
            last = before.get(each.worker_id)
            if last is None or last.requests > each.requests:  # or it left, and came back
                last = WorkerTotals(each.worker_id, 0, 0, 0.0, 0, 0.0)
            known.requests += each.requests - last.requests
            known.answers += each.answers - last.answers
            known.answer_s += each.answer_s - last.answer_s
            known.served += each.served - last.served
            known.served_s += each.served_s - last.served_s


def totals_of(sources: Iterable[Source], workers: Iterable[tuple[int, WorkerCounts]]) -> Totals:
    """What a front tells of what it has counted."""
    families = [
        Family(
            family.name,
            family.type,
            family.documentation,
            [(s.name, dict(s.labels), float(s.value)) for s in family.samples],
        )
        for source in sources
        for family in source()
        if isinstance(family, Metric)
    ]
    return Totals(
        families,
        [
            WorkerTotals(w, c.requests, c.answers, c.answer_s, c.served, c.served_s)
            for w, c in workers
        ],
    )
