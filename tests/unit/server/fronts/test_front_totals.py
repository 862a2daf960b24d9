"""What fronts have counted, summed as if one process had."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dynamo_router.server.fronts.front_totals import FrontTotals, totals_of
from dynamo_router.server.fronts.messages import Totals
from dynamo_router.server.metrics import WorkerCounts
from dynamo_router.server.metrics.histogram import RATIO, Histogram


def counted(ended: int, in_flight: int, waits: tuple[float, ...] = (), served: int = 0) -> Totals:
    """What a front tells."""
    requests = CounterMetricFamily("requests", "They ended.", labels=["status"])
    requests.add_metric(["ok"], ended)
    wait = Histogram("wait", "They waited.", RATIO)
    for each in waits:
        wait.observe(each)
    families = (requests, GaugeMetricFamily("inflight", "They run.", in_flight), wait.family())
    counts = WorkerCounts()
    counts.requests = counts.served = served
    return totals_of([lambda: families], [(7, counts)])


def shown(totals: FrontTotals) -> dict[str, float]:
    """All samples of a page that has counted 100 requests by itself."""

    def own() -> tuple[Metric, ...]:
        requests = CounterMetricFamily("requests", "They ended.", labels=["status"])
        requests.add_metric(["ok"], 100)
        return requests, GaugeMetricFamily("workers", "There are.", 3)

    found = {}
    for family in totals.added_to(own)():
        assert isinstance(family, Metric)
        for sample in family.samples:
            found[sample.name + "".join(sample.labels.values())] = sample.value
    return found


def test_fronts_are_summed_with_what_the_page_has() -> None:
    totals, workers = FrontTotals(), {7: WorkerCounts()}
    totals.take(0, "a", counted(3, 1, (0.05, 0.35), served=2), workers.get)
    totals.take(1, "b", counted(4, 2, (0.05,), served=5), workers.get)
    found = shown(totals)
    assert found["requests_totalok"] == 107
    assert found["inflight"] == 3
    assert found["workers"] == 3
    assert (found["wait_bucket0.1"], found["wait_bucket0.4"], found["wait_count"]) == (2, 3, 3)
    assert workers[7].requests == workers[7].served == 7


def test_a_front_that_tells_again_counts_once() -> None:
    totals, workers = FrontTotals(), {7: WorkerCounts()}
    for ended in (3, 5, 5):
        totals.take(0, "a", counted(ended, ended, served=ended), workers.get)
    found = shown(totals)
    assert (found["requests_totalok"], found["inflight"], workers[7].requests) == (105, 5, 5)


def test_what_a_dead_front_has_counted_stays_and_its_successor_begins_at_0() -> None:
    totals, workers = FrontTotals(), {7: WorkerCounts()}
    totals.take(0, "a", counted(5, 4, served=5), workers.get)
    totals.leave(0)
    found = shown(totals)
    assert found["requests_totalok"] == 105 and "inflight" not in found
    totals.take(0, "another", counted(2, 1, served=2), workers.get)
    found = shown(totals)
    assert (found["requests_totalok"], found["inflight"], workers[7].requests) == (107, 1, 7)


def test_a_front_that_was_away_goes_on_counting() -> None:
    totals, workers = FrontTotals(), {7: WorkerCounts()}
    totals.take(0, "a", counted(5, 0, served=5), workers.get)
    totals.leave(0)
    totals.take(0, "a", counted(9, 0, served=9), workers.get)
    assert shown(totals)["requests_totalok"] == 109 and workers[7].requests == 9
