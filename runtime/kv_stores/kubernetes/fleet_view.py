"""Which keys are visible: those of pods that are ready, as they wrote them last. No I/O.

A pod is visible if it is ready and has metadata. An object that cannot be read, or whose data is
null, stands for its last one that could, as long as it is the same object: the API server passes
through such states.
"""

from collections.abc import Callable, Iterable
from typing import Any

from structlog import get_logger

from ..store import Deleted, Entry
from .pod_identity import instance_id_of
from .worker_metadata import MAPS, WorkerMetadata, name_and_uid, read_metadata

Readiness = Callable[[Any], frozenset[str]]
"""The names that one object says are ready."""
log = get_logger(__name__)


class FleetView:
    """Feed it what two watches say; `changes` come out by bucket, in the order of revisions."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._metadata: dict[str, WorkerMetadata] = {}
        self._ready: dict[str, frozenset[str]] = {}
        self._entries: dict[str, dict[str, Entry]] = {bucket: {} for bucket in MAPS}
        self.revision = 0
        """how many changes there were so far: a count of ours, not one of the API server"""
        self.malformed = 0
        """objects so far that could not be read"""

    def entries(self, bucket: str) -> dict[str, Entry]:
        """The keys of a bucket that are visible now."""
        return self._entries.get(bucket, {})

    def on_metadata_listed(self, objects: Iterable[Any]) -> dict[str, list[Entry | Deleted]]:
        before, self._metadata = self._metadata, {}
        for found in objects:
            self._learn(found, before)
        return self._settle()

    def on_metadata(self, found: Any, deleted: bool) -> dict[str, list[Entry | Deleted]]:
        if deleted:
            try:
                self._metadata.pop(name_and_uid(found)[0], None)
            except ValueError:
                self.malformed += 1
        else:
            self._learn(found, self._metadata)
        return self._settle()

    def on_readiness_listed(self, objects: Iterable[Any]) -> dict[str, list[Entry | Deleted]]:
        self._ready = {}
        for found in objects:
            self._learn_readiness(found, False)
        return self._settle()

    def on_readiness(self, found: Any, deleted: bool) -> dict[str, list[Entry | Deleted]]:
        self._learn_readiness(found, deleted)
        return self._settle()

    def _learn(self, found: Any, before: dict[str, WorkerMetadata]) -> None:
        try:
            name, uid = name_and_uid(found)
        except ValueError:
            self.malformed += 1
            return
        try:
            self._metadata[name] = read_metadata(found)
        except ValueError as error:
            self.malformed += 1
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
            self.malformed += 1
            log.warning("readiness cannot be read", error=str(error)[:200])
            return
        if ready:
            self._ready[name] = ready
        else:
            self._ready.pop(name, None)

    def _settle(self) -> dict[str, list[Entry | Deleted]]:
        """What is different now."""
        changes: dict[str, list[Entry | Deleted]] = {}
        wanted = self._visible()
        for bucket, before in self._entries.items():
            said: list[Entry | Deleted] = []
            for key in sorted(before.keys() - wanted[bucket].keys()):
                self.revision += 1
                del before[key]
                said.append(Deleted(key, self.revision))
            for key, (value, lease) in sorted(wanted[bucket].items()):
                known = before.get(key)
                if known is None or known.value != value:
                    self.revision += 1
                    before[key] = Entry(key, value, self.revision, lease)
                    said.append(before[key])
            if said:
                changes[bucket] = said
        return changes

    def _visible(self) -> dict[str, dict[str, tuple[bytes, int]]]:
        ready = frozenset[str]().union(*self._ready.values())
        found: dict[str, dict[str, tuple[bytes, int]]] = {bucket: {} for bucket in MAPS}
        for name in sorted(ready & self._metadata.keys()):
            id = instance_id_of(name)
            for bucket, values in self._metadata[name].data.items():
                for key, value in values.items():
                    # Of two that claim a key, the one whose id is in it has it, else the first.
                    if key not in found[bucket] or f"{id:x}" in key.split("/"):
                        found[bucket][key] = value, id
        return found


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
