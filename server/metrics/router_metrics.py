"""All metrics of a served router, put together."""

from collections.abc import Callable, Mapping

from ...base.clock import Clock
from ...indexer.event_index import EventIndex
from ...kv_events import EventIntake
from ...process.logs import LogOutput
from ...router.admission import AdmissionQueue
from ...router.kv_router import KvRouter
from ...workers.request_reports import RequestReports
from ..access import Security
from ..dispatch import Dispatcher
from ..replica_sync import ReplicaSync
from .collectors import (
    booking_metrics,
    dispatch_metrics,
    event_metrics,
    fault_metrics,
    forecast_metrics,
    loan_metrics,
    plane_metrics,
    queue_metrics,
    replica_metrics,
    security_metrics,
    session_metrics,
    snapshot_metrics,
    source_metrics,
    stream_metrics,
    tenant_metrics,
)
from .loop_lag import LoopLagProbe
from .page import MetricsPage
from .process import build_metrics, log_metrics, process_metrics, server_metrics
from .requests import RequestMetrics
from .worker_requests import WorkerRequests
from .workers import worker_metrics


class RouterMetrics:
    """`requests` observes the dispatcher, `workers` counts by worker, `page` is what is scraped.
    `loop_lag` runs from its start to its close; without, it tells nothing.

    The rest is watched where it is: say so by `watch_pool`, by `watch_events` once there are any,
    and by `watch_process` where the page is that of the whole process.
    """

    def __init__(self, router: KvRouter, clock: Clock, in_flight: Callable[[], int]) -> None:
        self._router = router
        self.workers = WorkerRequests(router.registry)
        self.requests = RequestMetrics(in_flight, clock, self.workers)
        self.loop_lag = LoopLagProbe(clock)
        self.page = MetricsPage(self.requests.collect)

    def watch_pool(
        self,
        dispatcher: Dispatcher,
        reports: RequestReports,
        *,
        max_workers: int,
        queue: AdmissionQueue | None,
    ) -> None:
        page = self.page
        page.add(worker_metrics(self._router, self.workers, reports, max_workers))
        page.add(dispatch_metrics(dispatcher))
        page.add(booking_metrics(self._router.slots))
        page.add(fault_metrics(self._router, dispatcher))
        page.add(forecast_metrics(self._router))
        page.add(session_metrics(self._router.sessions))
        page.add(tenant_metrics(self._router))
        if queue is not None:
            page.add(queue_metrics(queue))

    def watch_process(
        self,
        security: Security,
        *,
        log: LogOutput | None,
        open_calls: Callable[[], Mapping[str, int]],
        http_connections: Callable[[], int],
    ) -> None:
        page = self.page
        page.add(self.loop_lag.collect)
        page.add(process_metrics)
        page.add(build_metrics)
        page.add(security_metrics(security))
        page.add(log_metrics(log))
        page.add(server_metrics(open_calls, http_connections))

    def watch_events(self, index: EventIndex, events: EventIntake) -> None:
        self.page.add(event_metrics(index))
        self.page.add(plane_metrics(events.plane, events.feed))
        self.page.add(source_metrics(events.sources))
        if events.snapshot is not None:
            self.page.add(snapshot_metrics(events.snapshot))
        if events.durable is not None:
            self.page.add(snapshot_metrics(events.durable))
            self.page.add(stream_metrics(events.durable))
        if events.peers is not None:
            self.page.add(loan_metrics(events.peers))

    def watch_replicas(self, sync: ReplicaSync) -> None:
        self.page.add(replica_metrics(sync))
