"""Where a worker says how to receive its KV events, and whom to ask for those that were missed.

| key | what it says |
|---|---|
| `v1/event_channels/{scope}/topic/{topic}/{publisher}` | how to receive from a publisher |
| `v1/event_sources/{scope}/topic/kv-events/{publisher}` | of whose cache; who repeats it |

A scope is `namespace/{namespace}/component/{component}/endpoint/{endpoint}`.
Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/dynamo_etcd_keys.txt`).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ...base.errors import UNREADABLE
from ...base.identity import WorkerWithDpRank, as_worker, doubles_of, is_same_id
from ...runtime.components import EndpointName, Instance, decode_instance, read_id
from ...runtime.event_planes import KV_EVENTS
from ...runtime.event_planes.zmq import EVENT_CHANNELS, Channel, channel_scope, scope_prefix
from ...runtime.kv_stores import Entry

EVENT_SOURCES = "v1/event_sources"
RECOVERY = "worker_kv_query_source_"
"""How the endpoints begin that repeat events; the publisher's id follows, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class PublisherRecord:
    """The publisher of one rank's KV events, and the instance that repeats them."""

    worker: WorkerWithDpRank
    publisher_id: int
    recovery: Instance | None


class _Metadata(msgspec.Struct):
    worker: dict[str, int | float]
    recovery_target: dict[str, Any] | None = None


class _Source(msgspec.Struct):
    publisher_id: int | float
    metadata: _Metadata


def decode_source(entry: Entry) -> PublisherRecord:
    """ValueError for what is no event source."""
    try:
        read = msgspec.json.decode(entry.value, type=_Source)
        written = read.metadata.worker
        worker = as_worker((_whole(written["worker_id"]), _whole(written["dp_rank"])))
    except (*UNREADABLE, KeyError) as error:
        raise ValueError(f"not an event source: {error}") from None
    publisher_id = read_id(entry.key.rpartition("/")[2])
    if not is_same_id(read.publisher_id, publisher_id):
        raise ValueError(f"the value names publisher {read.publisher_id}, its key {publisher_id}")
    return PublisherRecord(worker, publisher_id, _recovery(read.metadata.recovery_target))


def _whole(number: int | float) -> int:
    """ValueError for one with a fraction."""
    if number != int(number):
        raise ValueError(f"{number} is no whole number")
    return int(number)


def by_worker(
    sources: Iterable[PublisherRecord], worker_ids: Collection[int]
) -> dict[WorkerWithDpRank, PublisherRecord]:
    """Sources by whose cache they speak of. A worker's id that no worker has, as its writer rounded
    it to a double, is that of the one worker whose id may be rounded so."""
    exact: dict[float, int | None] = {}
    found = {}
    for source in sources:
        worker = source.worker
        if worker.worker_id not in worker_ids and worker_ids:
            if not exact:
                for id in worker_ids:
                    for double in set(doubles_of(id)):
                        exact[double] = None if double in exact else id
            if (id_of_one := exact.get(float(worker.worker_id))) is not None:
                source = replace(source, worker=worker._replace(worker_id=id_of_one))
        found[source.worker] = source
    return found


def _recovery(target: dict[str, Any] | None) -> Instance | None:
    if target is None:
        return None
    try:
        parts = [target[key] for key in ("namespace", "component", "endpoint")]
        key = "/".join((*parts, f"{int(target['instance_id']):x}"))
        return decode_instance(Entry(key, msgspec.json.encode(target), 0))
    except (KeyError, TypeError, ValueError):
        return None  # its events are good without it


def event_channel(
    name: EndpointName, publisher_id: int, subject_prefix: str
) -> tuple[str, str, bytes]:
    """(bucket, key, value) of a channel over NATS."""
    place = name.namespace, name.component, name.endpoint
    channel = Channel(*place, KV_EVENTS, publisher_id, "Nats", subject_prefix)
    return EVENT_CHANNELS, channel.key, channel.value()


def event_source(name: EndpointName, source: PublisherRecord) -> tuple[str, str, bytes]:
    """(bucket, key, value) of an event source."""
    metadata: dict[str, Any] = {
        "kv_state_endpoint": _named(name),
        "worker": {"worker_id": source.worker.worker_id, "dp_rank": source.worker.dp_rank},
        "publisher_id": source.publisher_id,
    }
    if source.recovery is not None:
        target: dict[str, Any] = msgspec.json.decode(source.recovery.value())
        del target["type"]
        metadata["recovery_target"] = target
    value = {
        "type": "EventSource",
        "scope": channel_scope(name.namespace, name.component, name.endpoint),
        "topic": KV_EVENTS,
        "publisher_id": source.publisher_id,
        "metadata": metadata,
    }
    prefix = scope_prefix(name.namespace, name.component, name.endpoint)
    key = f"{prefix}{KV_EVENTS}/{source.publisher_id:x}"
    return EVENT_SOURCES, key, msgspec.json.encode(value)


def _named(name: EndpointName) -> dict[str, str]:
    return {"namespace": name.namespace, "component": name.component, "name": name.endpoint}
