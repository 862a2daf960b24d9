"""What Prometheus sees: counters along a request's way, gauges read at each scrape, and the page
that is made of them without holding requests up.

Entered by `serve`; wraps what it measures and is called by none of it.
"""

from .families import counter_by, counters, gauges, source
from .histogram import SECONDS
from .http_answers import HttpAnswers, HttpFault
from .merged import Family, FrontPages, families_of
from .page import MetricsPage
from .pooled import Labels
from .process import build_metrics, record_metrics
from .process_metrics import LabelledPages, ProcessMetrics
from .requests import BUCKETS, REQUEST_COUNTS
from .router_metrics import RouterMetrics
from .table import Table
