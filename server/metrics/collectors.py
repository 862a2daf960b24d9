"""Metrics of the router, its index and its event feed, read when Prometheus asks. Names of callers
are no labels: they have no bound."""

import math
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.metrics_core import Metric

from ...base import unreadable
from ...base.limit_hits import LIMITS, LimitHits
from ...indexer.event_index import EventIndex
from ...indexer.prefix_index import PrefixIndex
from ...kv_events import DurableEvents, EventFeed, EventSources, IndexPeers, SnapshotTask
from ...process import supervised
from ...router.admission import AdmissionQueue
from ...router.affinity import SessionAffinity
from ...router.kv_router import KvRouter
from ...router.policy import SHADOW_OUTCOMES
from ...runtime.event_planes import EventPlane, PlaneState
from ...slots.table import SlotTable
from ...workers.failures import WORKER_CAUSES
from ..access import REASONS, Security
from ..dispatch import Dispatcher
from ..migration import RefusedMove
from ..replica_sync import ReplicaSync
from .families import counter_by, counters, gauge_by, gauges, source

# Counters of the index that stand for what was lost or could not be used.
_EVENT_FAULTS = {
    "undecodable": "Event messages that could not be decoded.",
    "ignored": "Event messages on other topics.",
    "dropped": "Event messages that found the mailbox full.",
    "invalid": "Stored events that contradict themselves.",
    "refused": "Events and heartbeats refused: too many unregistered workers.",
    "departed": "Events and heartbeats of publishers whose worker has left.",
    "out_of_memory": "Events lost for want of memory.",
    "held": "Events that had to wait behind a gap.",
    "unannounced": "Events and heartbeats of publishers that their worker did not announce.",
    "overflows": "Gaps given up because too many events waited.",
}

# Sums over the sources.
_SOURCE_COUNTS = (
    ("gaps", "Holes in a source's numbering."),
    ("given_up", "Holes that were not filled."),
    ("restarts", "Sources that began anew."),
    ("duplicates", "Events that had been applied before."),
)


@source
def event_metrics(index: EventIndex) -> Iterator[Metric | None]:
    """What became of the events that reached the index."""
    found = index.counters()
    totals = Counter({name: 0 for name, _ in _SOURCE_COUNTS})
    for sources in index.sources_in_steps():
        for each in sources:
            for name in totals:
                totals[name] += getattr(each, name)
        yield None
    tiers = index.tier_counters()

    def total(name: str) -> int:
        return sum(tier[name] for tier in tiers.values())

    # Dynamo's name lacks the _total that a counter's would be given.
    applied = UnknownMetricFamily(
        "dynamo_component_kv_cache_events_applied",
        "KV events by what became of them.",
        labels=["event_type", "status"],
    )
    for event_type in ("stored", "removed", "cleared"):
        applied.add_metric([event_type, "ok"], total(f"{event_type}_events"))
    applied.add_metric(["stored", "parent_block_not_found"], total("orphans"))
    applied.add_metric(["stored", "invalid_block"], found["invalid"])
    yield applied
    blocks = CounterMetricFamily(
        "dynamo_router_index_blocks", "Blocks that events changed.", labels=["change", "tier"]
    )
    for tier, changes in tiers.items():
        for change in ("stored", "removed"):
            blocks.add_metric([change, tier], changes[change])
    yield blocks
    yield from counters(
        "dynamo_router_",
        ("events_unknown", "Removals of blocks that were not held.", total("unknown")),
        ("index_evictions", "Branches dropped for want of room.", found["evicted_branches"]),
        ("index_evicted_blocks", "Blocks in those branches.", found["evicted_blocks"]),
        *((f"events_{name}", help, found[name]) for name, help in _EVENT_FAULTS.items()),
        *((f"event_{name}", help, totals[name]) for name, help in _SOURCE_COUNTS),
    )
    yield from gauges(
        "dynamo_router_",
        ("indexed_blocks", "Different blocks indexed.", found["indexed_blocks"]),
        ("index_bytes", "Memory of the index.", found["index_bytes"]),
        ("events_waiting", "Messages in the mailbox.", found["waiting"]),
        ("events_held_now", "Events behind gaps.", found["held_now"]),
    )


@source
def dispatch_metrics(dispatcher: Dispatcher) -> Iterator[Metric]:
    """Requests and aborts on their way."""
    aborts = dispatcher.aborts
    yield from gauges(
        "dynamo_",
        ("component_inflight_requests", "Requests in flight.", dispatcher.in_flight),
        ("router_aborts_pending", "Aborts on their way to workers.", aborts.pending),
    )
    yield from counters(
        "dynamo_router_",
        ("aborts_dropped", "Aborts not sent, because too many were on their way.", aborts.dropped),
    )


@source
def fault_metrics(router: KvRouter, dispatcher: Dispatcher) -> Iterator[Metric]:
    """What went wrong with requests and policies, and what was done about it."""
    yield from gauges(
        "dynamo_router_",
        (
            "retry_budget_used",
            "Requests on a further attempt that count against the retry budget.",
            dispatcher.budget.retrying,
        ),
    )
    yield counter_by(
        "outcome",
        "dynamo_router_hedges",
        "Second attempts, by how they ended: won, lost, failed.",
        {outcome: dispatcher.hedges[outcome] for outcome in ("won", "lost", "failed")},
    )
    yield counter_by(
        "cause",
        "dynamo_router_migrations",
        "Streams continued on another worker, by why the one before was lost.",
        dict.fromkeys(WORKER_CAUSES, 0) | dispatcher.migrations.moved,
    )
    yield counter_by(
        "reason",
        "dynamo_router_migrations_refused",
        "Streams that ended with their worker although --migration-limit is set: limit,"
        " failure, request, budget, no_worker.",
        {reason.value: dispatcher.migrations.refused[reason] for reason in RefusedMove},
    )
    prefetches = dispatcher.prefetcher.plan.counts
    yield from counters(
        "dynamo_router_",
        (
            "policy_failures",
            "Failures of an installed policy: exceptions and invalid answers.",
            router.policy_failures,
        ),
        (
            "policy_slow_decisions",
            "Decisions of an installed policy that took longer than 5 ms; all requests wait.",
            router.slow_decisions,
        ),
        (
            "shed_requests",
            "Requests refused because no worker would meet their objective.",
            router.limits.requests_shed,
        ),
        (
            "prefetches",
            "Requests for which an engine was asked to load blocks.",
            prefetches.asked,
        ),
        ("prefetched_blocks", "Blocks that engines reported to load.", prefetches.blocks),
        (
            "prefetched_blocks_wasted",
            "Blocks that an engine loaded for requests that another one took.",
            prefetches.wasted,
        ),
    )


@source
def shadow_metrics(router: KvRouter) -> Iterator[Metric]:
    """What a policy that is only compared would have done."""
    shadow = router.shadow
    yield counter_by(
        "outcome",
        "dynamo_router_shadow_decisions",
        "Requests by what --shadow-policy would have chosen: same (worker), other, failed.",
        dict.fromkeys(SHADOW_OUTCOMES, 0) if shadow is None else shadow.outcomes,
    )
    yield counter_by(
        "direction",
        "dynamo_router_shadow_ttft_seconds",
        "Foreseen TTFT by which another choice of --shadow-policy is sooner or later, summed.",
        {
            "sooner": 0.0 if shadow is None else shadow.sooner_s,
            "later": 0.0 if shadow is None else shadow.later_s,
        },
    )
    yield gauge_by(
        "policy",
        "dynamo_router_shadow_info",
        "1, with the policy of --shadow-policy as label; no sample without one.",
        {} if shadow is None else {shadow.name: 1},
    )


@source
def limit_metrics(hits: LimitHits) -> Iterator[Metric]:
    """How often each limit was hit."""
    yield counter_by(
        "limit",
        "dynamo_router_limits_hit",
        "Times that a limit was hit, by the name of the setting or bound.",
        dict.fromkeys(LIMITS, 0) | hits.counts(),
    )


def unreadable_metrics() -> Iterator[Metric]:
    """What others wrote for all to read, and this process could not."""
    yield counter_by(
        "source",
        "dynamo_router_unreadable_entries",
        "Keys of stores and objects of Kubernetes that could not be read, and were passed over.",
        dict.fromkeys(unreadable.SOURCES, 0) | unreadable.counts,
    )


def loop_metrics() -> Iterator[Metric]:
    """Failures of this process's background loops."""
    yield counter_by(
        "loop",
        "dynamo_router_loop_failures",
        "Exceptions in background loops, which went on.",
        supervised.failures,
    )


@source
def prediction_metrics(index: PrefixIndex) -> Iterator[Metric]:
    """What is believed of caches because of where requests were sent: what all workers hold with
    `--no-kv-events`, else of those that report nothing, or have not reported yet."""
    known = index.predictions
    yield from gauges(
        "dynamo_router_",
        (
            "index_predicted_blocks",
            "Blocks believed to be cached because of where requests were sent.",
            known.blocks,
        ),
    )
    yield from counters(
        "dynamo_router_predictions_",
        ("expired", "Predicted blocks dropped after --router-ttl-secs.", known.expired),
        ("pruned", "Predicted blocks dropped beyond --router-max-tree-size.", known.pruned),
    )


@source
def booking_metrics(slots: SlotTable) -> Iterator[Metric]:
    """What became of requests that were to be booked as load."""
    yield counter_by(
        "reason",
        "dynamo_router_bookings_refused",
        "Requests not booked as load: the table is full, or the caller has used its share.",
        {"full": slots.refused, "share": slots.over_share},
    )
    yield from counters(
        "dynamo_router_bookings_",
        ("expired", "Bookings dropped for their age.", slots.expired),
        ("duplicates", "Bookings refused because their id was booked.", slots.duplicates),
    )


@source
def snapshot_metrics(snapshots: SnapshotTask | DurableEvents) -> Iterator[Metric]:
    """Where the index is kept: a file, or an object beside the stream of its events."""
    yield from counters(
        "dynamo_router_index_",
        ("snapshots", "Snapshots of the index that were written.", snapshots.saves),
        (
            "snapshot_failures",
            "Snapshots of the index that could not be read or written.",
            snapshots.failures,
        ),
    )
    yield from gauges(
        "dynamo_router_index_",
        ("snapshot_bytes", "Bytes of the last snapshot of the index.", snapshots.saved_bytes),
        (
            "restored_sources",
            "Event sources restored from a snapshot at the start.",
            snapshots.restored,
        ),
    )


@source
def loan_metrics(peers: IndexPeers) -> Iterator[Metric]:
    """What routers that start get from those that run."""
    yield from gauges(
        "dynamo_router_index_",
        ("borrowed_sources", "Sources known from another router at the start.", peers.borrowed),
    )
    yield from counters(
        "dynamo_router_index_", ("lent", "Copies made for routers that started.", peers.lent)
    )


@source
def stream_metrics(durable: DurableEvents) -> Iterator[Metric]:
    """The stream that durable KV events are read from."""
    plane = durable.plane
    reader = plane.reader
    yield from gauges(
        "dynamo_router_event_stream_",
        ("read_sequence", "Message of the stream that was read last.", reader.read),
        ("acked_sequence", "Message of the stream up to which all is applied.", reader.acked),
        ("caught_up", "1 while what is read is recent.", plane.caught_up),
    )
    yield from counters(
        "dynamo_router_event_stream_",
        ("lapses", "Times that messages were gone before they were read.", reader.lapses),
        (
            "fallbacks",
            "Times that the stream was away, and events taken as published.",
            plane.fallbacks,
        ),
        ("purges", "Times that this router let old messages go.", durable.purges),
        (
            "readers_removed",
            "Readers of routers that are gone, removed by this one.",
            durable.readers_removed,
        ),
    )


@source
def source_metrics(sources: EventSources) -> Iterator[Metric]:
    """Where workers send events of caches, and the streams of engines that do it over gRPC."""
    counted = sources.counted()
    ways = ("nats", "grpc", "zmq", "http", "predicted")
    yield gauge_by(
        "source",
        "dynamo_router_event_sources",
        "Workers by where their events come from.",
        {way: counted[way] for way in ways},
    )
    yield counter_by(
        "source",
        "dynamo_router_event_source_switches",
        "Times that a worker's source was left for another one, by the new one.",
        {way: sources.switches[way] for way in ways},
    )
    counts = sources.counts
    yield from counters(
        "dynamo_router_event_stream_",
        ("subscriptions", "Subscriptions to engines' streams of events.", counts.subscriptions),
        ("batches", "Batches of events taken from these streams.", counts.batches),
        ("gaps", "Times that batches or events were missing in these streams.", counts.gaps),
        ("undecodable", "Batches that could not be read.", counts.undecodable),
        ("strange_ranks", "Batches of ranks that are not registered.", counts.strange_ranks),
        (
            "short_replays",
            "Replays of missed events that stopped before their end.",
            sources.short_replays,
        ),
    )


@source
def plane_metrics(plane: EventPlane, feed: EventFeed) -> Iterator[Metric]:
    """The state and traffic of the event plane."""
    stats = plane.stats
    yield from gauges(
        "dynamo_router_event_plane_",
        ("connected", "Whether the event plane is reachable.", plane.state is PlaneState.CONNECTED),
    )
    yield from counters(
        "dynamo_router_event_plane_",
        ("received", "Messages received from the event plane.", stats.received),
        ("receive_dropped", "Messages lost because handlers were too slow.", stats.receive_dropped),
        ("published", "Messages sent.", stats.published),
        ("publish_dropped", "Messages that could not be sent.", stats.publish_dropped),
        ("garbled", "Messages refused for their form or their publisher.", stats.garbled),
        ("handler_errors", "Messages whose handler raised an exception.", stats.handler_errors),
        ("connects", "Times that the event plane became reachable.", stats.connects),
        ("refused", "Messages that the index's full mailbox did not take.", feed.refused),
        ("replays_asked", "Requests for missed events.", feed.replays_asked),
        ("announcements_asked", "Requests for whole caches.", feed.announcements_asked),
    )


@source
def replica_metrics(sync: ReplicaSync) -> Iterator[Metric]:
    """How many other routers there are, what they have booked, and how their messages arrive."""
    replica, dynamo = sync.replica, sync.dynamo
    peers, counts, evidence = replica.peers, replica.peers.counts, replica.evidence
    yield from gauges(
        "dynamo_router_peers",
        ("", "Other routers of the same workers that are alive.", len(peers.present())),
        ("_bookings", "Requests that other routers have booked.", len(peers) + len(dynamo)),
        ("_bytes", "Memory for what other routers have booked, estimated.", peers.bytes),
    )
    yield from counters(
        "dynamo_router_peer_",
        ("batches", "Batches of other routers' bookings that were applied.", counts.batches),
        ("duplicates", "Batches that had been applied before.", counts.duplicates),
        ("gaps", "Times that batches were missing.", counts.gaps),
        ("pictures", "Times that all bookings of another router were read anew.", counts.pictures),
        ("gone", "Other routers that stopped sending.", counts.gone),
        (
            "refused",
            "Other routers' bookings refused for want of room.",
            counts.refused + dynamo.refused,
        ),
        ("refuted", "Other routers' bookings that engines have refuted.", evidence.refuted),
        ("doubts", "Times that refuted bookings made a router doubted.", evidence.doubted),
        ("undecodable", "Messages that could not be read.", sync.undecodable),
        ("untold", "Own bookings that could not be sent to other routers.", replica.own.dropped),
    )


@source
def queue_metrics(queue: AdmissionQueue) -> Iterator[Metric]:
    """Requests that wait because every worker is saturated."""
    yield from gauges(
        "dynamo_router_queue_",
        ("pending_requests", "Requests waiting in the admission queue.", len(queue)),
    )
    yield from counters(
        "dynamo_router_queue_",
        ("queued", "Requests that had to wait for admission.", queue.queued),
        ("refused", "Requests refused because the queue was full.", queue.refused),
        (
            "deferred",
            "Requests that waited although an engine had capacity, which was left to other "
            "tenants.",
            queue.deferred,
        ),
    )


@source
def tenant_metrics(router: KvRouter) -> Iterator[Metric]:
    """0 where all requests are one tenant's."""
    shares = router.limits.tenants
    use = shares.recent_use(router.clock.now())
    yield from gauges(
        "dynamo_router_tenant",
        (
            "s",
            "Tenants whose use is remembered; these five are 0 until a request names one.",
            len(shares),
        ),
        ("s_recent", "Tenants with work in the last 30 s, about.", use.tenants),
        ("s_over_share", "Tenants with over 1.05 times their share of the recent work.", use.over),
        ("_largest_share", "Largest part of the recent work that one tenant had.", use.largest),
    )
    yield from counters(
        "dynamo_router_tenants_",
        (
            "forgotten",
            "Tenants forgotten because more than --router-max-tenants were known.",
            shares.forgotten,
        ),
    )


@source
def session_metrics(sessions: SessionAffinity) -> Iterator[Metric]:
    """Nothing where sessions do not matter."""
    if not sessions.enabled:
        return
    counts = sessions.table.counts
    yield from gauges(
        "dynamo_router_", ("sessions", "Sessions that are bound to a worker.", len(sessions))
    )
    yield counter_by(
        "outcome",
        "dynamo_router_session_requests",
        "Decisions on requests with a session: new (not bound), kept (its worker), moved (another"
        " one), refused (no worker took it).",
        {outcome: sessions.counts[outcome] for outcome in ("new", "kept", "moved", "refused")},
    )
    yield from counters(
        "dynamo_router_sessions_",
        ("expired", "Sessions forgotten for their age.", counts.expired),
        ("evicted", "Sessions forgotten for want of room.", counts.evicted),
        ("heard", "Bindings taken over from other routers.", counts.merged),
        (
            "outdated",
            "Bindings of other routers that were older than the one in use.",
            counts.outdated,
        ),
    )


@source
def forecast_metrics(router: KvRouter) -> Iterator[Metric]:
    """Nothing where the policy foresees nothing."""
    state = router.residuals
    if state is None:
        return
    yield from gauges(
        "dynamo_router_forecast_",
        (
            "trusted",
            "1: the policy's forecast decides. 0: its predictions fail, and its fallback decides.",
            state.trusted,
        ),
        (
            "failing_workers",
            "Workers whose own TTFTs differ from their predictions.",
            state.failing_workers,
        ),
    )
    yield from counters(
        "dynamo_router_forecast_",
        ("fallbacks", "Times that predictions began to fail, so that the fallback decided.",
         state.fallbacks),
    )  # fmt: skip
    yield gauge_by(
        "kind",
        "dynamo_router_forecast_scatter",
        "Logarithm of the error that half of the predictions exceed. kind: ttft or itl.",
        {"ttft": state.ttft_scatter, "itl": state.itl_scatter},
    )
    failed = GaugeMetricFamily(
        "dynamo_router_forecast_failed_seconds",
        "A prediction of those that failed last. value: foreseen or seen; kind: ttft, "
        "itl, or worker_ttft of single workers.",
        labels=["kind", "value"],
    )
    if state.failed is not None:
        failed.add_metric([state.failed.kind, "foreseen"], state.failed.foreseen_s)
        failed.add_metric([state.failed.kind, "seen"], state.failed.took_s)
    yield failed


@source
def security_metrics(security: Security) -> Iterator[Metric]:
    """Refused calls by reason, the certificate's end, and files read again or refused."""
    yield counter_by(
        "reason",
        "dynamo_router_access_refused",
        "Calls refused by access control.",
        dict.fromkeys(REASONS, 0) | security.access.refused,
    )
    files = security.watch.files
    unread = dict.fromkeys(Security.SECRETS, 0)
    yield counter_by(
        "file",
        "dynamo_router_secret_reloads",
        "Reloads of secret files.",
        unread | {each.what: each.reloads for each in files},
    )
    yield counter_by(
        "file",
        "dynamo_router_secret_reload_failures",
        "Reloads of secret files that failed; the old ones stay in use.",
        unread | {each.what: each.failures for each in files},
    )
    tls = security.server_tls
    yield from gauges(
        "dynamo_router_tls_certificate_",
        (
            "expires_seconds",
            "Expiry of the listeners' certificate, in Unix time; +Inf without TLS.",
            math.inf if tls is None else tls.not_after,
        ),
    )
