"""Which keys are visible: those of pods that are ready, as they wrote them last. No I/O.

A pod is visible if it is ready and has metadata. An object that cannot be read, or whose data is
null, stands for its last one that could, as long as it is the same object: the API server passes
through such states.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from structlog import get_logger

from ....base import unreadable
from ..store import Deleted, Entry
from .pod_identity import instance_id_of
from .worker_metadata import MAPS, WorkerMetadata, name_and_uid, read_metadata

Readiness = Callable[[Any], frozenset[str]]
"""The names that one object says are ready."""
Changes = dict[str, list[Entry | Deleted]]
"""What became different, by bucket."""
log = get_logger(__name__)


class ClusterView:
    """Feed it what two watches say; `changes` come out by bucket, in the order of revisions."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._metadata: dict[str, WorkerMetadata] = {}
        self._slices: dict[str, frozenset[str]] = {}
        self._ready: frozenset[str] = frozenset()
        self._shown: dict[str, WorkerMetadata] = {}
        """the metadata of those that are visible"""
        self._claims: dict[str, dict[str, dict[str, bytes]]] = {bucket: {} for bucket in MAPS}
        """the values of each key, by the names of those who wrote it"""
        self._entries: dict[str, dict[str, Entry]] = {bucket: {} for bucket in MAPS}
        self.revision = 0
        """how many changes there were so far: a count of ours, not one of the API server"""

    def entries(self, bucket: str) -> dict[str, Entry]:
        """The keys of a bucket that are visible now."""
        return self._entries.get(bucket, {})

    def on_metadata_listed(self, objects: Iterable[Any]) -> Changes:
        before, self._metadata = self._metadata, {}
        for found in objects:
            self._learn(found, before)
        return self._settle(before.keys() | self._metadata.keys())

    def on_metadata(self, found: Any, deleted: bool) -> Changes:
        try:
            name, _ = name_and_uid(found)
        except ValueError:
            unreadable.counts["kubernetes"] += 1
            return {}
        if deleted:
            self._metadata.pop(name, None)
        else:
            self._learn(found, self._metadata)
        return self._settle({name})

    def on_readiness_listed(self, objects: Iterable[Any]) -> Changes:
        self._slices = {}
        for found in objects:
            self._learn_readiness(found, False)
        return self._settle_readiness()

    def on_readiness(self, found: Any, deleted: bool) -> Changes:
        self._learn_readiness(found, deleted)
        return self._settle_readiness()

    def _learn(self, found: Any, before: dict[str, WorkerMetadata]) -> None:
        try:
            name, uid = name_and_uid(found)
        except ValueError:
            unreadable.counts["kubernetes"] += 1
            return
        try:
            self._metadata[name] = read_metadata(found)
        except ValueError as error:
            unreadable.counts["kubernetes"] += 1
            log.warning("worker metadata cannot be read", name=name[:200], error=str(error)[:200])
            last = before.get(name)
            if last is not None and last.uid == uid:
                self._metadata[name] = last
            else:
                self._metadata.pop(name, None)

    def _learn_readiness(self, found: Any, deleted: bool) -> None:
        try:
            name, _ = name_and_uid(found)
            ready = frozenset() if deleted else self._readiness(found)
        except ValueError as error:
            unreadable.counts["kubernetes"] += 1
            log.warning("readiness cannot be read", error=str(error)[:200])
            return
        if ready:
            self._slices[name] = ready
        else:
            self._slices.pop(name, None)

    def _settle_readiness(self) -> Changes:
        before, self._ready = self._ready, frozenset[str]().union(*self._slices.values())
        return self._settle(before ^ self._ready)

    def _settle(self, names: Iterable[str]) -> Changes:
        """What is different now that these names may be: work by them, not by the fleet."""
        touched: dict[str, set[str]] = {bucket: set() for bucket in MAPS}
        for name in names:
            visible = self._metadata.get(name) if name in self._ready else None
            before = self._shown.pop(name, None)
            if before is visible:
                if before is not None:
                    self._shown[name] = before
                continue
            if visible is not None:
                self._shown[name] = visible
            for bucket in MAPS:
                old = before.data[bucket] if before is not None else {}
                new = visible.data[bucket] if visible is not None else {}
                for key in old.keys() | new.keys():
                    claims = self._claims[bucket].setdefault(key, {})
                    claims.pop(name, None)
                    if key in new:
                        claims[name] = new[key]
                    touched[bucket].add(key)
        changes_of = ((bucket, self._changes(bucket, keys)) for bucket, keys in touched.items())
        return {bucket: changes for bucket, changes in changes_of if changes}

    def _changes(self, bucket: str, keys: set[str]) -> list[Entry | Deleted]:
        entries, gone, written = self._entries[bucket], [], []
        for key in sorted(keys):
            known, claims = entries.get(key), self._claims[bucket][key]
            if not claims:
                del self._claims[bucket][key]
                if known is not None:
                    gone.append(key)
                continue
            name = _owner(key, claims)
            if known is None or known.value != claims[name]:
                written.append((key, claims[name], instance_id_of(name)))
        changes: list[Entry | Deleted] = []
        for key in gone:
            self.revision += 1
            del entries[key]
            changes.append(Deleted(key, self.revision))
        for key, value, id in written:
            self.revision += 1
            entries[key] = Entry(key, value, self.revision, id)
            changes.append(entries[key])
        return changes


def _owner(key: str, claims: Mapping[str, bytes]) -> str:
    """Of several who claim a key, the one whose id is in it has it, else the first by name."""
    if len(claims) > 1:
        parts = key.split("/")
        for name in sorted(claims):
            if f"{instance_id_of(name):x}" in parts:
                return name
    return min(claims)


def ready_in_slice(found: Any) -> frozenset[str]:
    """The pods that are ready by an EndpointSlice. ValueError if it is none."""
    names = set()
    for endpoint in _objects(found.get("endpoints"), "endpoints"):
        conditions, target = endpoint.get("conditions"), endpoint.get("targetRef")
        ready = isinstance(conditions, dict) and conditions.get("ready") is True
        if ready and isinstance(target, dict) and isinstance(target.get("name"), str):
            names.add(target["name"])
    return frozenset(names - {""})


def ready_in_pod(found: Any) -> frozenset[str]:
    """The containers of a pod that are ready, by the names that they register under."""
    pod, _ = name_and_uid(found)
    status = found.get("status")
    statuses = status.get("containerStatuses") if isinstance(status, dict) else None
    return frozenset(
        pod if each.get("name") == "main" else f"{pod}-{each.get('name')}"
        for each in _objects(statuses, "containerStatuses")
        if each.get("ready") is True
    )


def _objects(found: Any, what: str) -> list[dict[str, Any]]:
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{what} is not a list of objects")
    return found
