"""What Prometheus sees: counters along a request's way, gauges read at each scrape.

Entered by `serve`; wraps what it measures and is called by none of it.
"""

from .collectors import (
    dispatch_metrics,
    event_metrics,
    fault_metrics,
    plane_metrics,
    queue_metrics,
    snapshot_metrics,
    worker_metrics,
)
from .requests import Gauges, RequestMetrics, registry_of
from .security import security_metrics

__all__ = [
    "Gauges",
    "RequestMetrics",
    "dispatch_metrics",
    "event_metrics",
    "fault_metrics",
    "plane_metrics",
    "queue_metrics",
    "registry_of",
    "security_metrics",
    "snapshot_metrics",
    "worker_metrics",
]
