"""What Prometheus sees of session affinity.

The table is that of this router: where several tell each other, each counts all that it knows of.
"""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from ...router.affinity import SessionAffinity
from .families import counter_by, counters, gauges, source


@source
def session_metrics(sessions: SessionAffinity) -> Iterator[Metric]:
    """Nothing where sessions do not matter."""
    if not sessions.enabled:
        return
    counts = sessions.table.counts
    yield from gauges(
        "dynamo_router_", ("sessions", "Sessions that are bound to a worker.", len(sessions))
    )
    yield counter_by(
        "outcome",
        "dynamo_router_session_requests",
        "Decisions on requests with a session, by what became of it.",
        {outcome: sessions.counts[outcome] for outcome in ("new", "kept", "moved", "refused")},
    )
    yield from counters(
        "dynamo_router_sessions_",
        ("expired", "Sessions forgotten for their age.", counts.expired),
        ("evicted", "Sessions forgotten for want of room.", counts.evicted),
        ("heard", "Bindings taken over from other routers.", counts.heard),
        ("outdated", "Bindings of other routers that were older.", counts.outdated),
    )
