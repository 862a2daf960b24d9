"""What Prometheus sees: counters along a request's way, gauges read at each scrape, and the page
that is made of them without holding anybody up.

Entered by `serve`; wraps what it measures and is called by none of it.
"""

from .collectors import (
    dispatch_metrics,
    event_metrics,
    fault_metrics,
    plane_metrics,
    queue_metrics,
    snapshot_metrics,
)
from .loop_lag import LoopLagProbe
from .page import MetricsPage, Rendered
from .process import build_metrics, log_metrics, process_metrics
from .requests import RequestMetrics
from .security import security_metrics
from .worker_requests import WorkerRequests
from .workers import worker_metrics

__all__ = [
    "LoopLagProbe",
    "MetricsPage",
    "Rendered",
    "RequestMetrics",
    "WorkerRequests",
    "build_metrics",
    "dispatch_metrics",
    "event_metrics",
    "fault_metrics",
    "log_metrics",
    "plane_metrics",
    "process_metrics",
    "queue_metrics",
    "security_metrics",
    "snapshot_metrics",
    "worker_metrics",
]
