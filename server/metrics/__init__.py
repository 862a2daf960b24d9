"""What Prometheus sees: counters along a request's way, gauges read at each scrape, and the page
that is made of them without holding anybody up.

Entered by `serve`; wraps what it measures and is called by none of it.
"""

from .collectors import dispatch_metrics, fault_metrics, limit_metrics, loop_metrics
from .page import MetricsPage, Source, Table
from .pooled import Labels
from .process_metrics import ProcessMetrics
from .router_metrics import RouterMetrics
from .worker_requests import WorkerCounts

__all__ = [
    "Labels",
    "MetricsPage",
    "ProcessMetrics",
    "RouterMetrics",
    "Source",
    "Table",
    "WorkerCounts",
    "dispatch_metrics",
    "fault_metrics",
    "limit_metrics",
    "loop_metrics",
]
