"""What Prometheus sees: counters along a request's way, gauges read at each scrape, and the page
that is made of them without holding anybody up.

Entered by `serve`; wraps what it measures and is called by none of it.
"""

from .page import MetricsPage
from .pooled import pooled_metrics
from .process import build_metrics, process_metrics
from .router_metrics import RouterMetrics

__all__ = ["MetricsPage", "RouterMetrics", "build_metrics", "pooled_metrics", "process_metrics"]
