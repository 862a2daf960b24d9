"""ServerParts: what the pools and the listeners of one server have in common."""

from collections.abc import Callable
from typing import Any

from ..base.clock import SystemClock
from ..base.limit_hits import LimitHits
from ..process.logs import LogOutput
from ..process.memory import FreedMemory
from ..process.off_loop import OffLoop, OffLoopBounds
from ..process.settings import SettingsSource
from .access import Security
from .answer_watch import AnswerWatch
from .call_limits import CallLimits
from .config import ServeConfig
from .dashboard import Overview, PlanView, ProcessHistory
from .dispatch import NO_TRACE, Tracing
from .fronts import Siblings, share_metrics, share_overview
from .metrics import LabelledPages, MetricsPage, ProcessMetrics, record_metrics
from .record import recorder_of
from .tracing import span_export_of


class ServerParts:
    """Made from a configuration: clock, security, spans, limits, threads, metrics of the process,
    the other processes, whether it drains. `config` is the configuration that is in use now.

    ConfigError if a file that the configuration names is not valid. `start` and `close` are the
    server's to call.
    """

    def __init__(
        self,
        config: ServeConfig,
        source: SettingsSource[Any] | None = None,
        output: LogOutput | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        """`source`: where the settings are read again from; None: nowhere. `output`: the log that
        settings change. `siblings`: the other processes that serve the same ports."""
        self.config = config
        self.source, self.output = source, output
        self.siblings = siblings or Siblings()
        self.shares_ports = config.fronts.several
        """whether other processes of ours listen on the same ports"""
        self.clock = SystemClock()
        self.security = Security(config, self.clock)
        self._spans = span_export_of(config.observability.otel_endpoint)
        self.tracing: Tracing = NO_TRACE if self._spans is None else self._spans.tracing
        self.hits = LimitHits()
        """limits of the whole process"""
        limits = config.peers
        self.calls = CallLimits(limits, self.hits)
        """of all listeners"""
        self.off_loop = OffLoop(
            OffLoopBounds(
                limits.max_computations, limits.max_computation_bytes, limits.max_share_per_caller
            ),
            self.hits,
        )
        self._freed = FreedMemory(self.off_loop)
        self.calls.bytes.on_given_back = self._freed.on_freed
        self.off_loop.held_bytes.on_given_back = self._freed.on_freed
        self.metrics = ProcessMetrics(self.clock, self.security, self.hits, output, self.off_loop)
        self.answers = AnswerWatch(
            self.metrics.http_answers, self.tracing, access_log=config.observability.access_log
        )
        """of all HTTP listeners"""
        self.history = ProcessHistory(self.clock, self.metrics.http_answers)
        """from the server's start until its pools close"""
        self.read_overview = share_overview(
            self.siblings, Overview(self.clock, self.history, self.metrics.http_answers)
        )
        """for dashboards: what all processes did lately"""
        self.plan = PlanView(
            # Kubernetes keeps no decisions, and each view of it is a watch of the whole namespace.
            lambda: (
                None if config.backend == "kubernetes" else config.discovery.open(config.backend)
            ),
            config.namespace,
            self.clock,
        )
        """for dashboards: what a planner writes"""
        seen = config.observability
        self.recorder = recorder_of(
            seen.record,
            max_mb=seen.record_max_mb,
            kept=seen.record_files,
            process=self.siblings.number if self.shares_ports else None,
            folder=self.siblings.folder,
        )
        """of all requests; None: none is recorded"""
        if self.recorder is not None:
            self.metrics.add(record_metrics(self.recorder))
        self.draining = False
        self.on_draining: list[Callable[[], None]] = []
        """called once it drains"""

    def metrics_page(self, pools: LabelledPages) -> MetricsPage:
        """What a scrape gets: the metrics of this process, those of its pools, and those of the
        other processes."""
        page = self.metrics.page(pools)
        page.siblings = share_metrics(self.siblings, page)
        return page

    def turn_away(self) -> None:
        """Show by health that no more requests should come."""
        self.draining = True
        for listener in self.on_draining:
            listener()

    def start(self) -> None:
        self.metrics.loop_lag.start()
        self.history.start()
        if self.recorder is not None:
            self.recorder.start()
        self.security.watch.start()

    async def close(self) -> None:
        """Idempotent."""
        self.metrics.loop_lag.close()
        await self.security.watch.close()
        if self.recorder is not None:
            await self.recorder.close()
        await self.plan.close()
        self._freed.close()
        self.off_loop.close()
        if self._spans is not None:
            await self._spans.close()
