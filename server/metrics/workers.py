"""What Prometheus sees of each worker. Series go with their worker, and their number is bounded."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from operator import attrgetter
from typing import Any

from prometheus_client.metrics_core import Metric

from ...indexer.wire import TIERS
from ...router.kv_router import KvRouter
from ...router.views import WorkerView
from ...workers.failures import WORKER_CAUSES
from ...workers.registry import WorkerEntry, WorkerState
from ...workers.request_reports import RequestReports
from .families import gauge_by, gauges, source
from .table import Table
from .worker_requests import WorkerCounts, WorkerRequests

OTHERS = "other"
"""The worker_id of all together that have no series of their own."""
UNREGISTERED = "unregistered"
"""The worker_id of all together that publish events and are not registered."""

_NO_COUNTS = WorkerCounts()
_OF_RANKS = (  # name, help, field of a WorkerView
    ("dynamo_frontend_worker_active_decode_blocks", "Blocks of requests in flight.",
     "active_blocks"),
    ("dynamo_frontend_worker_active_prefill_tokens", "Prompt tokens not computed yet.",
     "active_prefill_tokens"),
    ("dynamo_router_worker_active_requests", "Requests in flight.", "active_requests"),
    ("dynamo_router_worker_indexed_blocks", "Blocks that the index has for the worker.",
     "indexed_blocks"),
    ("dynamo_router_worker_unindexed_blocks",
     "Blocks of the worker that the index had no room for.",
     "unindexed_blocks"),
)  # fmt: skip


@source
def worker_metrics(
    router: KvRouter, requests: WorkerRequests, reports: RequestReports, max_workers: int
) -> Iterator[Metric | Table | None]:
    """Load, caches, state and requests of every worker: of `max_workers` ranks by themselves."""
    views: list[WorkerView] = []
    for some in router.workers_in_steps():
        views += some
        yield None
    registered = [view for view in views if view.state != UNREGISTERED]
    shown, others = registered[:max_workers], registered[max_workers:]
    strangers = views[len(registered) :]
    yield from _rank_tables(shown, {OTHERS: others, UNREGISTERED: strangers})
    yield _states_of_fleet(views)
    yield from gauges(
        "dynamo_router_metrics_",
        (
            "ranks_left_out",
            f'Ranks beyond --metrics-max-workers: together they are worker_id="{OTHERS}".',
            len(others),
        ),
    )
    ids = dict.fromkeys(view.worker.worker_id for view in shown)
    entries = [entry for entry in map(router.registry.entry, ids) if entry is not None]
    yield None
    yield from _worker_tables(entries, requests, reports)
    yield from _fault_tables(ids, reports)


def _rank_tables(
    shown: Sequence[WorkerView], together: dict[str, Sequence[WorkerView]]
) -> Iterator[Table | None]:
    """Of each rank, and sums of those that are shown together."""
    together = {name: views for name, views in together.items() if views}
    ranks = [(f'dp_rank="{v.worker.dp_rank}",', f'worker_id="{v.worker.worker_id}"') for v in shown]
    rank_labels = [rank + worker for rank, worker in ranks]
    labels = [*rank_labels, *(f'worker_id="{name}"' for name in together)]
    yield None

    for name, help, field in _OF_RANKS:
        value = attrgetter(field)
        sums = [sum(map(value, views)) for views in together.values()]
        yield Table(name, "gauge", help, labels, [*map(value, shown), *sums])
    lower = [
        (f'{rank}tier="{tier}",{worker}', blocks)
        for (rank, worker), view in zip(ranks, shown, strict=True)
        if any(view.lower_tier_blocks)
        for tier, blocks in zip(TIERS[1:], view.lower_tier_blocks, strict=True)
        if blocks
    ]
    lower += [
        (f'tier="{tier}",worker_id="{name}"', sum(view.lower_tier_blocks[i] for view in views))
        for name, views in together.items()
        for i, tier in enumerate(TIERS[1:])
    ]
    yield _table(
        "dynamo_router_worker_lower_tier_blocks",
        "gauge",
        "Blocks of the worker in lower storage tiers.",
        lower,
    )
    states: list[tuple[str, Any]] = [
        (f'{rank}state="{view.event_source_state}",{worker}', 1)
        for (rank, worker), view in zip(ranks, shown, strict=True)
    ]
    for name, views in together.items():
        for state, count in Counter(view.event_source_state for view in views).items():
            states.append((f'state="{state}",worker_id="{name}"', count))
    yield _table(
        "dynamo_router_event_source_state",
        "gauge",
        "1 for the present state of its events; of ranks that are summed up, how many.",
        states,
    )


def _states_of_fleet(views: Iterable[WorkerView]) -> Metric:
    states = Counter({state.value: 0 for state in WorkerState})
    states.update(view.state for view in views)
    return gauge_by("state", "dynamo_router_workers", "Ranks by state.", states)


def _worker_tables(
    entries: Sequence[WorkerEntry], requests: WorkerRequests, reports: RequestReports
) -> Iterator[Table]:
    """Of each engine, all its ranks together."""
    yield _table(
        "dynamo_router_worker_state",
        "gauge",
        "1 for its present state. reason: ejected, no_answer (to probes), unfit (block "
        "size, model, id) or empty.",
        [
            (
                f'reason="{_reason(entry, reports)}",state="{entry.state.value}",'
                f'worker_id="{entry.worker_id}"',
                1,
            )
            for entry in entries
        ],
    )
    labels = [f'worker_id="{entry.worker_id}"' for entry in entries]
    counts = [requests.counts(entry.worker_id) or _NO_COUNTS for entry in entries]
    yield Table(
        "dynamo_router_worker_requests",
        "counter",
        "Requests sent to the worker that ended, successful or not.",
        labels,
        [count.requests for count in counts],
    )
    yield Table(
        "dynamo_router_worker_time_to_first_token_seconds",
        "summary",
        "From sending the worker a streaming request to its first message.",
        labels,
        [(count.answers, count.answer_s) for count in counts],
    )
    yield Table(
        "dynamo_router_worker_request_duration_seconds",
        "summary",
        "From sending the worker a request to the end of a successful answer.",
        labels,
        [(count.served, count.served_s) for count in counts],
    )


def _fault_tables(shown: Collection[int], reports: RequestReports) -> Iterator[Table]:
    own = [str(worker_id) for worker_id in shown]
    errors = Counter(dict.fromkeys(product(WORKER_CAUSES, own), 0))
    for (worker_id, cause), count in reports.errors.items():
        errors[cause, str(worker_id) if worker_id in shown else OTHERS] += count
    yield _table(
        "dynamo_router_worker_errors",
        "counter",
        "Attempts that failed, by worker and cause.",
        [(f'cause="{cause}",worker_id="{who}"', n) for (cause, who), n in errors.items()],
    )
    ejections = Counter(dict.fromkeys(own, 0))
    for worker_id, count in reports.outliers.ejections.items():
        ejections[str(worker_id) if worker_id in shown else OTHERS] += count
    yield _table(
        "dynamo_router_worker_ejections",
        "counter",
        "Times that a worker was ejected as an outlier.",
        [(f'worker_id="{who}"', count) for who, count in ejections.items()],
    )


def _reason(entry: WorkerEntry, reports: RequestReports) -> str:
    """What a state is for, in one of a few words; /workers and the log say it in full."""
    if entry.state is WorkerState.UNHEALTHY:
        ejected = entry.reason and entry.reason == reports.outliers.reason(entry.worker_id)
        return "ejected" if ejected else "no_answer"
    return "unfit" if entry.state is WorkerState.REFUSED else ""


def _table(name: str, kind: Any, help: str, rows: Sequence[tuple[str, Any]]) -> Table:
    return Table(name, kind, help, [labels for labels, _ in rows], [value for _, value in rows])
