"""Priorities that InferenceObjectives give requests which name them. No I/O.

Sources: InferenceObjective of llm-d.ai/v1alpha2 and of inference.networking.x-k8s.io/v1alpha2.
"""

from collections.abc import Iterable, Mapping
from typing import Any

GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""The first one goes before the other where both have an objective of one name."""
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


class ObjectiveView:
    """Of one pool; None: of every pool of the namespace. Feed it what the watches report."""

    def __init__(self, pool: str | None) -> None:
        self._pool = pool
        self._found: dict[str, dict[str, int]] = {group: {} for group in GROUPS}

    def priority(self, name: str) -> int | None:
        """Higher first; None: there is no such objective."""
        found = (self._found[group].get(name) for group in GROUPS)
        return next((priority for priority in found if priority is not None), None)

    def on_listed(self, group: str, objects: Iterable[Any]) -> None:
        """All objectives of a group."""
        self._found[group] = {}
        for found in objects:
            self.on_changed(group, found, deleted=False)

    def on_changed(self, group: str, found: Any, deleted: bool) -> None:
        """An objective as it is now. One that cannot be read, or is of another pool, is none."""
        if not isinstance(found, Mapping) or not isinstance(found.get("metadata"), Mapping):
            return
        name, spec = found["metadata"].get("name"), found.get("spec") or {}
        if not isinstance(name, str):
            return
        self._found[group].pop(name, None)
        if deleted or not isinstance(spec, Mapping):
            return
        ref, priority = spec.get("poolRef"), spec.get("priority", 0)
        ours = self._pool is None or (isinstance(ref, Mapping) and ref.get("name") == self._pool)
        if ours and type(priority) is int and _LEAST <= priority <= _MOST:
            self._found[group][name] = priority
