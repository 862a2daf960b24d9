"""The metrics of several processes as one page."""

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dynamo_router.server.metrics import Family, FrontPages, MetricsPage, Table, families_of

Families = list[Metric | Table | None]


def process(number: int) -> Families:
    """What a process tells."""
    registry = CollectorRegistry()
    Counter("requests", "R.", ["status"], registry=registry).labels("ok").inc(10 + number)
    if number:
        Counter("failures", "F.", ["kind"], registry=registry).labels(f"k{number}").inc()
    Gauge("memory", "M.", registry=registry).set(100 + number)
    histogram = Histogram("seconds", "S.", buckets=(1, 2), registry=registry)
    for value in (0.5, 1.5, number):
        histogram.observe(value)
    workers = ['worker="9"', f'worker="{number}"']
    table = Table("sent", "counter", "T.", workers, [1, 2])
    loads = Table("load", "gauge", "L.", ['worker="1"'], [number + 5])
    times = Table("times", "summary", "Z.", ['worker="1"'], [(1, 0.5)])
    return [*registry.collect(), None, table, loads, times]


async def page_of(*others: Families | None) -> dict[str, float]:
    page = MetricsPage(lambda: process(0))
    told: dict[int, list[Family] | None] = {}
    for number, families in enumerate(others, 1):
        sent = None if families is None else await families_of(families)
        wire = msgspec.msgpack.encode(sent)
        told[number] = msgspec.msgpack.decode(wire, type=list[Family] | None)

    async def siblings() -> FrontPages:
        return FrontPages(0, told)

    page.siblings = siblings
    text = (await page.render()).body.decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}"
            assert name not in found, f"{name} is there twice"
            found[name] = sample.value
    return found


async def test_counters_and_histograms_are_sums() -> None:
    found = await page_of(process(1), process(2))
    assert found["requests_total{status=ok}"] == 10 + 11 + 12
    assert found["failures_total{kind=k1}"] == found["failures_total{kind=k2}"] == 1
    assert found["seconds_count{}"] == 9
    assert found["seconds_sum{}"] == 3 * 2 + 0 + 1 + 2
    assert found["seconds_bucket{le=1.0}"] == 2 + 2 + 1
    assert found["seconds_bucket{le=+Inf}"] == 9
    assert found["sent_total{worker=9}"] == 1 + 1 + 1
    assert [found[f"sent_total{{worker={n}}}"] for n in range(3)] == [2, 2, 2]
    assert found["times_count{worker=1}"] == 3 and found["times_sum{worker=1}"] == 1.5


async def test_what_describes_a_process_has_its_number() -> None:
    found = await page_of(process(1), process(2))
    assert [found[f"memory{{front={n}}}"] for n in range(3)] == [100, 101, 102]
    assert [found[f"load{{front={n},worker=1}}"] for n in range(3)] == [5, 6, 7]
    assert [found[f"dynamo_router_front_up{{front={n}}}"] for n in range(3)] == [1, 1, 1]


async def test_one_that_does_not_answer_is_left_out_and_that_is_seen() -> None:
    found = await page_of(None, process(2))
    assert found["requests_total{status=ok}"] == 10 + 12
    assert "memory{front=1}" not in found
    assert [found[f"dynamo_router_front_up{{front={n}}}"] for n in range(3)] == [1, 0, 1]


async def test_one_process_has_no_numbers() -> None:
    text = (await MetricsPage(lambda: process(0)).render()).body.decode()
    assert "memory 100.0" in text and "front" not in text
