"""What Prometheus sees: counters along a request's way, gauges read at each scrape, and the page
that is made of them without holding anybody up.

Entered by `serve`; wraps what it measures and is called by none of it.
"""

from .merged import Family, FrontPages, families_of
from .page import MetricsPage, Source
from .pooled import pooled_metrics
from .process import build_metrics, process_metrics
from .router_metrics import RouterMetrics
from .table import Table

__all__ = [
    "Family",
    "FrontPages",
    "MetricsPage",
    "RouterMetrics",
    "Source",
    "Table",
    "build_metrics",
    "families_of",
    "pooled_metrics",
    "process_metrics",
]
