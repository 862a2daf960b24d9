"""The metrics of a server's process, whatever pools it has."""

from collections.abc import Callable, Iterable, Mapping

from ...base.clock import Clock
from ...base.limit_hits import LimitHits
from ...process.logs import LogOutput
from ...process.off_loop import OffLoop
from ..access import Security
from .collectors import limit_metrics, loop_metrics, security_metrics, unreadable_metrics
from .http_answers import HttpAnswers
from .loop_lag import LoopLagProbe
from .page import MetricsPage, Source
from .pooled import Labels, pooled_metrics
from .process import (
    build_metrics,
    log_metrics,
    off_loop_metrics,
    process_metrics,
    server_metrics,
)

LabelledPages = Callable[[], Iterable[tuple[Labels, MetricsPage]]]


class ProcessMetrics:
    """`loop_lag` runs from its start to its close; without, it shows nothing."""

    def __init__(
        self,
        clock: Clock,
        security: Security,
        hits: LimitHits,
        log: LogOutput | None,
        off_loop: OffLoop,
    ) -> None:
        self.loop_lag = LoopLagProbe(clock)
        self.http_answers = HttpAnswers()
        self._page = MetricsPage(
            self.loop_lag.collect,
            process_metrics,
            build_metrics,
            security_metrics(security),
            log_metrics(log),
            limit_metrics(hits),
            loop_metrics,
            unreadable_metrics,
            off_loop_metrics(off_loop),
            self.http_answers.collect,
        )

    def watch_servers(
        self, open_calls: Callable[[], Mapping[str, int]], http_connections: Callable[[], int]
    ) -> None:
        """Show what callers have open."""
        self._page.add(server_metrics(open_calls, http_connections))

    def add(self, source: Source) -> None:
        """Show what else the process has."""
        self._page.add(source)

    def page(self, pools: LabelledPages) -> MetricsPage:
        """What a scrape gets: these metrics, and those of the pools with their labels."""
        return MetricsPage(pooled_metrics(lambda: [({}, self._page), *pools()]))
