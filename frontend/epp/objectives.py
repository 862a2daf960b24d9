"""Priorities that InferenceObjectives give requests which name them. No I/O.

Sources: InferenceObjective of llm-d.ai/v1alpha2 and of inference.networking.x-k8s.io/v1alpha2.
"""

from collections.abc import Mapping
from typing import Any

from .pool_objects import PoolObjects

_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


class ObjectiveView(PoolObjects[int]):
    """Of one pool; None: of every pool of the namespace."""

    def __init__(self, pool: str | None) -> None:
        super().__init__("InferenceObjective", pool, _read_priority)

    def priority(self, name: str) -> int | None:
        """Higher first; None: there is no such objective."""
        return self.get(name)


def _read_priority(found: Any) -> int:
    spec = found.get("spec") or {}
    priority = spec.get("priority", 0) if isinstance(spec, Mapping) else None
    if type(priority) is not int or not _LEAST <= priority <= _MOST:
        raise ValueError("spec.priority is no int32")
    return priority
