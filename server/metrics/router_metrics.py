"""All metrics of one pool, put together."""

from collections.abc import Callable

from ...base.clock import Clock
from ...base.limit_hits import LimitHits
from ...indexer.event_index import EventIndex
from ...kv_events import EventIntake
from ...router.admission import AdmissionQueue
from ...router.kv_router import KvRouter
from ...workers.request_reports import RequestReports
from ..dispatch import Dispatcher
from ..replica_sync import ReplicaSync
from .collectors import (
    booking_metrics,
    dispatch_metrics,
    event_metrics,
    fault_metrics,
    forecast_metrics,
    limit_metrics,
    loan_metrics,
    plane_metrics,
    prediction_metrics,
    queue_metrics,
    replica_metrics,
    session_metrics,
    shadow_metrics,
    snapshot_metrics,
    source_metrics,
    stream_metrics,
    tenant_metrics,
)
from .handoffs import handoff_metrics
from .page import MetricsPage
from .requests import RequestMetrics
from .worker_requests import WorkerRequests
from .workers import worker_metrics


class RouterMetrics:
    """`requests` observes the dispatcher, `workers` counts by worker, `page` is what is scraped.

    The rest is watched where it is: say so by `watch_pool`, and by `watch_events` once there are
    any.
    """

    def __init__(self, router: KvRouter, clock: Clock, in_flight: Callable[[], int]) -> None:
        self._router = router
        self.workers = WorkerRequests(router.registry)
        self.requests = RequestMetrics(in_flight, clock, self.workers)
        self.page = MetricsPage(self.requests.collect)

    def watch_pool(
        self,
        dispatcher: Dispatcher,
        reports: RequestReports,
        *,
        max_workers: int,
        queue: AdmissionQueue | None,
        hits: LimitHits | None,
    ) -> None:
        """`hits`: of limits, if they are the pool's own."""
        page = self.page
        page.add(worker_metrics(self._router, self.workers, reports, max_workers))
        page.add(dispatch_metrics(dispatcher))
        page.add(handoff_metrics(dispatcher.handoffs))
        page.add(booking_metrics(self._router.slots))
        page.add(prediction_metrics(self._router.index))
        page.add(fault_metrics(self._router, dispatcher))
        page.add(shadow_metrics(self._router))
        if hits is not None:
            page.add(limit_metrics(hits))
        page.add(forecast_metrics(self._router))
        page.add(session_metrics(self._router.sessions))
        page.add(tenant_metrics(self._router))
        if queue is not None:
            page.add(queue_metrics(queue))

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
