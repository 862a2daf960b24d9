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
            GaugeMetricFamily("dynamo_router_queue_pending_requests", "They wait.", len(queue)),
            CounterMetricFamily("dynamo_router_queue_queued", "They had to wait.", queue.queued),
            CounterMetricFamily(
                "dynamo_router_queue_refused", "Turned away: too many waited.", queue.refused
            ),
            CounterMetricFamily(
                "dynamo_router_queue_deferred",
                "They found capacity that was left to other tenants.",
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
            GaugeMetricFamily("dynamo_router_tenants", "They are remembered.", len(shares)),
            GaugeMetricFamily("dynamo_router_tenants_recent", "They had any of late.", use.tenants),
            GaugeMetricFamily(
                "dynamo_router_tenants_over_share", "They had more than their share.", use.over
            ),
            GaugeMetricFamily(
                "dynamo_router_tenant_largest_share",
                "Part of the recent work that one tenant had, the largest such part.",
                use.largest,
            ),
            CounterMetricFamily(
                "dynamo_router_tenants_forgotten", "Too many were known.", shares.forgotten
            ),
        )

    return collect
