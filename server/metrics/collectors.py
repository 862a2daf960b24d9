"""What the router, its index and its event feed tell when Prometheus asks."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.metrics_core import Metric

from ...base.limit_hits import LimitHits
from ...indexer.event_index import EventIndex
from ...kv_events import DurableEvents, EventFeed, EventSources, IndexPeers, SnapshotTask
from ...process import supervised
from ...router.kv_router import KvRouter
from ...router.replicas import ReplicaSync
from ...runtime.event_planes import EventPlane, PlaneState
from ...slots.table import SlotTable
from ..dispatch import Dispatcher
from ..migration import RefusedMove
from ..prefetch import PrefetchCounts
from .page import Source

# Counters of the index that stand for what was lost or could not be used.
_EVENT_FAULTS = {
    "undecodable": "Event messages that could not be decoded.",
    "ignored": "Event messages on other topics.",
    "dropped": "Event messages that found the mailbox full.",
    "invalid": "Stored events that contradict themselves.",
    "refused": "Events and heartbeats refused: too many workers that nobody registered.",
    "departed": "Events and heartbeats of those who spoke for workers that left.",
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


def event_metrics(index: EventIndex) -> Source:
    """What became of the events that reached the index."""

    def collect() -> Iterator[Metric | None]:
        counters = index.counters()
        totals = Counter({name: 0 for name, _ in _SOURCE_COUNTS})
        for sources in index.sources_in_steps():
            for source in sources:
                for name in totals:
                    totals[name] += getattr(source, name)
            yield None
        tiers = index.tier_counters()
        # Dynamo's name lacks the _total that a counter's would be given.
        applied = UnknownMetricFamily(
            "dynamo_component_kv_cache_events_applied",
            "KV events by what became of them.",
            labels=["event_type", "status"],
        )
        for event_type in ("stored", "removed", "cleared"):
            total = sum(each[f"{event_type}_events"] for each in tiers.values())
            applied.add_metric([event_type, "ok"], total)
        orphans = sum(each["orphans"] for each in tiers.values())
        applied.add_metric(["stored", "parent_block_not_found"], orphans)
        applied.add_metric(["stored", "invalid_block"], counters["invalid"])
        yield applied
        blocks = CounterMetricFamily(
            "dynamo_router_index_blocks", "Blocks that events changed.", labels=["change", "tier"]
        )
        for tier, each in tiers.items():
            for change in ("stored", "removed"):
                blocks.add_metric([change, tier], each[change])
        yield blocks
        yield CounterMetricFamily(
            "dynamo_router_events_unknown",
            "Removals of blocks that were not held.",
            sum(each["unknown"] for each in tiers.values()),
        )
        for name, help, value in (
            ("evictions", "Branches dropped for want of room.", "evicted_branches"),
            ("evicted_blocks", "Blocks in those branches.", "evicted_blocks"),
        ):
            yield CounterMetricFamily(f"dynamo_router_index_{name}", help, counters[value])
        for name, help, value in (
            ("dynamo_router_indexed_blocks", "Different blocks indexed.", "indexed_blocks"),
            ("dynamo_router_index_bytes", "Memory of the index.", "index_bytes"),
        ):
            yield GaugeMetricFamily(name, help, counters[value])
        for name, help in _EVENT_FAULTS.items():
            yield CounterMetricFamily(f"dynamo_router_events_{name}", help, counters[name])
        yield GaugeMetricFamily(
            "dynamo_router_events_waiting", "Messages in the mailbox.", counters["waiting"]
        )
        yield GaugeMetricFamily(
            "dynamo_router_events_held_now", "Events behind gaps.", counters["held_now"]
        )
        yield GaugeMetricFamily(
            "dynamo_router_index_predicted_blocks",
            "Blocks believed to be cached because of where requests were sent.",
            counters["predicted"],
        )
        for name, help in _SOURCE_COUNTS:
            yield CounterMetricFamily(f"dynamo_router_event_{name}", help, totals[name])

    return collect


def dispatch_metrics(dispatcher: Dispatcher) -> Callable[[], Iterable[Metric]]:
    """Requests and aborts on their way."""

    def collect() -> Iterable[Metric]:
        aborts = dispatcher.aborts
        return (
            GaugeMetricFamily(
                "dynamo_component_inflight_requests", "Requests in flight.", dispatcher.in_flight
            ),
            GaugeMetricFamily("dynamo_router_aborts_pending", "Aborts sent.", aborts.pending),
            CounterMetricFamily("dynamo_router_aborts_dropped", "Aborts not sent.", aborts.dropped),
        )

    return collect


def fault_metrics(router: KvRouter, dispatcher: Dispatcher) -> Callable[[], Iterable[Metric]]:
    """What went wrong with requests and policies, and what was done about it."""

    def collect() -> Iterable[Metric]:
        retrying = GaugeMetricFamily(
            "dynamo_router_retry_budget_used",
            "Requests on a further attempt that count.",
            dispatcher.budget.retrying,
        )
        hedges = CounterMetricFamily(
            "dynamo_router_hedges", "Second attempts, by how they ended.", labels=["outcome"]
        )
        for outcome in ("won", "lost", "failed"):
            hedges.add_metric([outcome], dispatcher.hedges[outcome])
        migrations = CounterMetricFamily(
            "dynamo_router_migrations",
            "Streams that went on at another worker, by what happened to the one before.",
            labels=["cause"],
        )
        for cause, count in dispatcher.migrations.moved.items():
            migrations.add_metric([cause], count)
        refused = CounterMetricFamily(
            "dynamo_router_migrations_refused",
            "Streams that ended with their worker although streams may go on, by the reason.",
            labels=["reason"],
        )
        for reason in RefusedMove:
            refused.add_metric([reason.value], dispatcher.migrations.refused[reason])
        policies = CounterMetricFamily(
            "dynamo_router_policy_failures",
            "Times that an installed policy raised or answered nonsense.",
            router.policy_failures,
        )
        shed = CounterMetricFamily(
            "dynamo_router_shed_requests",
            "Requests refused because wherever they went answers would miss their objective.",
            router.limits.requests_shed,
        )
        return (
            *(retrying, hedges, migrations, refused, policies, shed),
            *_prefetches(dispatcher.prefetcher.plan.counts),
        )

    return collect


def limit_metrics(hits: LimitHits) -> Callable[[], Iterable[Metric]]:
    """How often each limit was hit."""

    def collect() -> Iterable[Metric]:
        limits = CounterMetricFamily(
            "dynamo_router_limits_hit", "Times that a limit was hit.", labels=["limit"]
        )
        for limit, count in hits.counts().items():
            limits.add_metric([limit], count)
        return (limits,)

    return collect


def loop_metrics() -> Iterable[Metric]:
    """Failures of this process's background loops."""
    loops = CounterMetricFamily(
        "dynamo_router_loop_failures",
        "Exceptions that a background loop went on after.",
        labels=["loop"],
    )
    for loop, count in supervised.failures.items():
        loops.add_metric([loop.partition("-")[0]], count)
    return (loops,)


def _prefetches(counts: PrefetchCounts) -> Iterable[Metric]:
    """Blocks that engines load for requests that wait."""
    for name, help, number in (
        ("prefetches", "Requests for which an engine was asked to load blocks.", counts.asked),
        ("prefetched_blocks", "Blocks that engines said they load.", counts.blocks),
        ("prefetched_blocks_wasted", "Of those, of requests that went elsewhere.", counts.wasted),
    ):
        yield CounterMetricFamily(f"dynamo_router_{name}", help, number)


def booking_metrics(slots: SlotTable) -> Callable[[], Iterable[Metric]]:
    """What became of requests that were to be booked as load."""

    def collect() -> Iterable[Metric]:
        refused = CounterMetricFamily(
            "dynamo_router_bookings_refused", "Not booked for want of room.", labels=["reason"]
        )
        refused.add_metric(["full"], slots.refused)
        refused.add_metric(["share"], slots.over_share)
        return (
            refused,
            CounterMetricFamily(
                "dynamo_router_bookings_expired", "Dropped for their age.", slots.expired
            ),
            CounterMetricFamily(
                "dynamo_router_bookings_duplicates", "Their id was booked.", slots.duplicates
            ),
        )

    return collect


def snapshot_metrics(
    snapshots: SnapshotTask | DurableEvents,
) -> Callable[[], Iterable[Metric]]:
    """Where the index is kept: a file, or an object beside the stream of its events."""

    def collect() -> Iterable[Metric]:
        return (
            CounterMetricFamily(
                "dynamo_router_index_snapshots", "Times the index was written.", snapshots.saves
            ),
            CounterMetricFamily(
                "dynamo_router_index_snapshot_failures",
                "Times it could not be read or written.",
                snapshots.failures,
            ),
            GaugeMetricFamily(
                "dynamo_router_index_snapshot_bytes",
                "Size when last written.",
                snapshots.saved_bytes,
            ),
            GaugeMetricFamily(
                "dynamo_router_index_restored_sources",
                "Sources read from it at the start.",
                snapshots.restored,
            ),
        )

    return collect


def loan_metrics(peers: IndexPeers) -> Callable[[], Iterable[Metric]]:
    """What routers that start get from those that run."""

    def collect() -> Iterable[Metric]:
        return (
            GaugeMetricFamily(
                "dynamo_router_index_borrowed_sources",
                "Sources known from another router at the start.",
                peers.borrowed,
            ),
            CounterMetricFamily(
                "dynamo_router_index_lent", "Copies made for routers that started.", peers.lent
            ),
        )

    return collect


def stream_metrics(durable: DurableEvents) -> Callable[[], Iterable[Metric]]:
    """The stream that durable KV events are read from."""

    def collect() -> Iterable[Metric]:
        plane = durable.plane
        for name, help, number in (
            ("read_sequence", "Message of the stream that was read last.", plane.reader.read),
            ("acked_sequence", "Message of the stream up to which all is applied.",
             plane.reader.acked),
            ("caught_up", "1 while what is read is recent.", int(plane.caught_up)),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"dynamo_router_event_stream_{name}", help, number)
        for name, help, number in (
            ("lapses", "Times that messages were gone before they were read.",
             plane.reader.lapses),
            ("fallbacks", "Times that the stream was away, and events taken as published.",
             plane.fallbacks),
            ("purges", "Times that this router let old messages go.", durable.purges),
            ("readers_removed", "Readers of routers that are gone, removed by this one.",
             durable.readers_removed),
        ):  # fmt: skip
            yield CounterMetricFamily(f"dynamo_router_event_stream_{name}", help, number)

    return collect


def source_metrics(sources: EventSources) -> Callable[[], Iterable[Metric]]:
    """Where workers tell of their caches, and the streams of engines that do so over gRPC."""

    def collect() -> Iterable[Metric]:
        present = GaugeMetricFamily(
            "dynamo_router_event_sources",
            "Workers by where their events come from.",
            labels=["source"],
        )
        switches = CounterMetricFamily(
            "dynamo_router_event_source_switches",
            "Times that a worker's source was left for another one, by the new one.",
            labels=["source"],
        )
        counted = sources.counted()
        for source in ("nats", "grpc", "zmq", "http", "predicted"):
            present.add_metric([source], counted[source])
            switches.add_metric([source], sources.switches[source])
        yield present
        yield switches
        counts = sources.counts
        for name, help, value in (
            ("subscriptions", "Subscriptions made.", counts.subscriptions),
            ("batches", "Batches of events taken.", counts.batches),
            ("gaps", "Times that batches or events were missing.", counts.gaps),
            ("undecodable", "Batches that could not be read.", counts.undecodable),
            ("strange_ranks", "Batches of ranks not registered.", counts.strange_ranks),
            ("short_replays", "Replays that stopped before their end.", sources.short_replays),
        ):
            yield CounterMetricFamily(f"dynamo_router_event_stream_{name}", help, value)

    return collect


def plane_metrics(plane: EventPlane, feed: EventFeed) -> Callable[[], Iterable[Metric]]:
    """The state and traffic of the event plane."""

    def collect() -> Iterable[Metric]:
        stats = plane.stats
        yield GaugeMetricFamily(
            "dynamo_router_event_plane_connected",
            "Whether the event plane is there.",
            plane.state is PlaneState.CONNECTED,
        )
        for name, help, value in (
            ("received", "Messages handed to us.", stats.received),
            ("receive_dropped", "Messages lost because we were slow.", stats.receive_dropped),
            ("published", "Messages sent.", stats.published),
            ("publish_dropped", "Messages that could not be sent.", stats.publish_dropped),
            ("garbled", "Messages refused for their form or their publisher.", stats.garbled),
            ("handler_errors", "Messages that made us fail.", stats.handler_errors),
            ("connects", "Times it became reachable.", stats.connects),
            ("refused", "Messages that the index's full mailbox did not take.", feed.refused),
            ("replays_asked", "Requests for missed events.", feed.replays_asked),
            ("announcements_asked", "Requests for whole caches.", feed.announcements_asked),
        ):
            yield CounterMetricFamily(f"dynamo_router_event_plane_{name}", help, value)

    return collect


def replica_metrics(sync: ReplicaSync) -> Callable[[], Iterable[Metric]]:
    """How many other routers there are, what they have booked, and how well they are heard."""

    def collect() -> Iterable[Metric]:
        replica, dynamo = sync.replica, sync.dynamo
        peers, counts = replica.peers, replica.peers.counts
        for name, help, value in (
            ("", "Other routers that are heard.", len(peers.present())),
            ("_bookings", "Requests they have booked.", len(peers) + len(dynamo)),
        ):
            yield GaugeMetricFamily(f"dynamo_router_peers{name}", help, value)
        for name, help, value in (
            ("batches", "Batches of their events that were applied.", counts.batches),
            ("duplicates", "Batches that had been applied before.", counts.duplicates),
            ("gaps", "Times that batches were missing.", counts.gaps),
            ("pictures", "Times that all they have booked was taken anew.", counts.pictures),
            ("gone", "Routers that fell silent.", counts.gone),
            ("refused", "Bookings without room.", counts.refused + dynamo.refused),
            ("undecodable", "Messages that could not be read.", sync.undecodable),
            ("untold", "Events of ours that nobody could be told.", replica.own.dropped),
        ):
            yield CounterMetricFamily(f"dynamo_router_peer_{name}", help, value)

    return collect
