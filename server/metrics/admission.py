"""Who waits for admission, and what tenants have had: aggregates, since names have no bound."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ...router.admission import AdmissionQueue
from ...router.kv_router import KvRouter
from .families import counters, gauges, source


@source
def queue_metrics(queue: AdmissionQueue) -> Iterator[Metric]:
    """Requests that wait because every worker is saturated."""
    yield from gauges(
        "dynamo_router_queue_",
        ("pending_requests", "Requests waiting in the admission queue.", len(queue)),
    )
    yield from counters(
        "dynamo_router_queue_",
        ("queued", "Requests that had to wait for admission.", queue.queued),
        ("refused", "Requests refused because the queue was full.", queue.refused),
        (
            "deferred",
            "Requests that found capacity and left it to other tenants.",
            queue.deferred,
        ),
    )


@source
def tenant_metrics(router: KvRouter) -> Iterator[Metric]:
    """0 where all requests are one tenant's."""
    shares = router.limits.tenants
    use = shares.recent_use(router.clock.now())
    yield from gauges(
        "dynamo_router_tenant",
        ("s", "Tenants that are remembered.", len(shares)),
        ("s_recent", "Tenants that had any work recently.", use.tenants),
        ("s_over_share", "Tenants that had more than their share.", use.over),
        ("_largest_share", "Largest part of the recent work that one tenant had.", use.largest),
    )
    yield from counters(
        "dynamo_router_tenants_",
        ("forgotten", "Tenants forgotten because too many were known.", shares.forgotten),
    )
