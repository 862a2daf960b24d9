"""The metrics page: valid text, in slices, one at a time."""

import asyncio
import gzip
import itertools
from collections.abc import Iterator

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.metrics_core import Metric
from support.observability.exposition import families, samples

from dynamo_router.server.metrics.histogram import Histogram
from dynamo_router.server.metrics.page import LINES_AT_ONCE, MetricsPage
from dynamo_router.server.metrics.table import SLICE_S, Table

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
ROWS = 3 * LINES_AT_ONCE + 5
LABELS = [f'worker_id="{n}"' for n in range(ROWS)]


def source() -> Iterator[Metric | Table | None]:
    """A family of every kind."""
    yield Table("load", "gauge", "Now.", LABELS, range(ROWS))
    yield None
    yield Table("errors", "counter", "Ever.", LABELS, [n / 2 for n in range(ROWS)])
    yield Table("wait_seconds", "summary", "All.", LABELS, [(n, n / 4) for n in range(ROWS)])
    yield Table("nobody", "gauge", "None.", [], [])
    yield CounterMetricFamily("plain", "Ever.", 3)
    yield GaugeMetricFamily("now", "Now.", 4)
    yield UnknownMetricFamily("odd", "Either.", 5)
    histogram = Histogram("took_seconds", "Long.", (1, 2))
    histogram.observe(1.5)
    yield histogram.family()


@pytest.mark.parametrize("accept", ["", "text/plain", OPENMETRICS])
@pytest.mark.parametrize("encoding", ["", "gzip, deflate", "gzip;q=0"])
async def test_prometheus_reads_all_of_it(accept: str, encoding: str) -> None:
    page = await MetricsPage(source).render(accept, encoding)
    assert page.gzip is (encoding == "gzip, deflate")
    openmetrics = accept == OPENMETRICS
    assert page.content_type.startswith(
        "application/openmetrics-text; version=1.0.0"
        if openmetrics
        else "text/plain; version=0.0.4"
    )
    body = gzip.decompress(page.body) if page.gzip else page.body
    found = families(body.decode(), openmetrics=openmetrics)
    assert {name: family.type for name, family in found.items()} == {
        "load": "gauge",
        "errors": "counter",
        "wait_seconds": "summary",
        "nobody": "gauge",
        "plain": "counter",
        "now": "gauge",
        "odd": "unknown",
        "took_seconds": "histogram",
    }
    last = (("worker_id", str(ROWS - 1)),)
    assert samples(found["load"])["load", last] == ROWS - 1
    assert samples(found["errors"])["errors_total", last] == (ROWS - 1) / 2
    assert samples(found["wait_seconds"])["wait_seconds_count", last] == ROWS - 1
    assert samples(found["wait_seconds"])["wait_seconds_sum", last] == (ROWS - 1) / 4
    assert all(len(found[name].samples) == ROWS for name in ("load", "errors"))
    assert samples(found["took_seconds"])["took_seconds_bucket", (("le", "2.0"),)] == 1


async def test_others_get_a_turn_after_each_slice() -> None:
    clock = itertools.count(step=SLICE_S)  # each look at it is a slice later
    page = MetricsPage(source, now=lambda: next(clock))
    turns = 0
    done = asyncio.Event()

    async def others() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await page.render()
    done.set()
    await beside
    # Three tables of 4 pieces of lines and a head, a pause, an empty table, four families.
    assert turns >= 3 * 5 + 1 + 1 + 4


async def test_scrapes_at_the_same_time_share_a_page() -> None:
    made = 0

    def counted() -> Iterator[Metric | Table | None]:
        nonlocal made
        made += 1
        yield GaugeMetricFamily("made", "How often.", made)
        yield None

    clock = itertools.count(step=SLICE_S)
    page = MetricsPage(counted, now=lambda: next(clock))
    pages = await asyncio.gather(*(page.render() for _ in range(50)))
    assert made == 1  # all of them asked before it was begun
    assert {p.body.rsplit(b" ", 1)[1] for p in pages} == {b"1.0\n"}
    first = asyncio.create_task(page.render())
    while made == 1:
        await asyncio.sleep(0)
    later = await asyncio.gather(*(page.render() for _ in range(50)))
    assert (await first).body.endswith(b"2.0\n")
    assert {p.body.rsplit(b" ", 1)[1] for p in later} == {b"3.0\n"}  # begun after they asked
    assert made == 3 and (await page.render()).body.endswith(b"4.0\n")  # nothing is kept
    assert not page._made


async def test_a_scraper_that_hangs_up_spoils_nothing_for_the_next_one() -> None:
    clock = itertools.count(step=SLICE_S)
    page = MetricsPage(source, now=lambda: next(clock))
    one, two = (asyncio.create_task(page.render()) for _ in range(2))
    for _ in range(4):
        await asyncio.sleep(0)
    one.cancel()
    assert families((await two).body.decode())["plain"].samples[0].value == 3
    assert one.cancelled()
