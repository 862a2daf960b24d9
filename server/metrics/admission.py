"""Who waits for admission, and what tenants have had: aggregates, since names have no bound."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ...router.admission import AdmissionQueue
from ...router.kv_router import KvRouter


def queue_metrics(queue: AdmissionQueue) -> Callable[[], Iterable[Metric]]:
    """Requests that wait because every worker is saturated."""

    def collect() -> Iterable[Metric]:
        return (
            GaugeMetricFamily(
                "dynamo_router_queue_pending_requests",
                "Requests waiting in the admission queue.",
                len(queue),
            ),
            CounterMetricFamily(
                "dynamo_router_queue_queued",
                "Requests that had to wait for admission.",
                queue.queued,
            ),
            CounterMetricFamily(
                "dynamo_router_queue_refused",
                "Requests refused because the queue was full.",
                queue.refused,
            ),
            CounterMetricFamily(
                "dynamo_router_queue_deferred",
                "Requests that found capacity and left it to other tenants.",
                queue.deferred,
            ),
        )

    return collect


def tenant_metrics(router: KvRouter) -> Callable[[], Iterable[Metric]]:
    """0 where all requests are one tenant's."""
    shares = router.limits.tenants

    def collect() -> Iterable[Metric]:
        use = shares.recent_use(router.clock.now())
        return (
            GaugeMetricFamily("dynamo_router_tenants", "Tenants that are remembered.", len(shares)),
            GaugeMetricFamily(
                "dynamo_router_tenants_recent", "Tenants that had any work recently.", use.tenants
            ),
            GaugeMetricFamily(
                "dynamo_router_tenants_over_share",
                "Tenants that had more than their share.",
                use.over,
            ),
            GaugeMetricFamily(
                "dynamo_router_tenant_largest_share",
                "Largest part of the recent work that one tenant had.",
                use.largest,
            ),
            CounterMetricFamily(
                "dynamo_router_tenants_forgotten",
                "Tenants forgotten because too many were known.",
                shares.forgotten,
            ),
        )

    return collect
