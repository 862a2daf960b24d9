"""What Prometheus sees of session affinity.

The table is that of this router: where several tell each other, each counts all that it knows of.
"""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ...router.affinity import SessionAffinity


def session_metrics(sessions: SessionAffinity) -> Callable[[], Iterable[Metric]]:
    """Nothing where sessions do not matter."""

    def collect() -> Iterable[Metric]:
        if not sessions.enabled:
            return
        counts = sessions.table.counts
        yield GaugeMetricFamily(
            "dynamo_router_sessions", "Sessions that are bound to a worker.", len(sessions)
        )
        requests = CounterMetricFamily(
            "dynamo_router_session_requests",
            "Decisions on requests with a session, by what became of it.",
            labels=["outcome"],
        )
        for outcome in ("new", "kept", "moved", "refused"):
            requests.add_metric([outcome], sessions.counts[outcome])
        yield requests
        for name, help, value in (
            ("expired", "Sessions forgotten for their age.", counts.expired),
            ("evicted", "Sessions forgotten for want of room.", counts.evicted),
            ("heard", "Bindings taken over from other routers.", counts.heard),
            ("outdated", "Bindings of other routers that were older.", counts.outdated),
        ):
            yield CounterMetricFamily(f"dynamo_router_sessions_{name}", help, value)

    return collect
