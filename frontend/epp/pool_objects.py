"""Objects of one kind that name a pool, in the groups that have had the kind. No I/O."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import structlog

GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""The first one goes before the other where both have an object of one name."""
T = TypeVar("T")

log = structlog.get_logger(__name__)


class PoolObjects(Generic[T]):
    """Of one pool; None: of every pool of the namespace. Feed it what the watches report."""

    def __init__(self, kind: str, pool: str | None, read: Callable[[Any], T]) -> None:
        """`read` makes what is kept of an object; ValueError if it cannot be read."""
        self._kind, self._pool, self._read = kind, pool, read
        self._found: dict[str, dict[str, T]] = {group: {} for group in GROUPS}

    def get(self, name: str) -> T | None:
        """None: there is no such object."""
        return next((kept[name] for kept in self._found.values() if name in kept), None)

    def each(self) -> Iterator[T]:
        """All of them, one of each name."""
        seen: dict[str, T] = {}
        for kept in self._found.values():
            seen = {**kept, **seen}
        return iter(seen.values())

    def on_listed(self, group: str, objects: Iterable[Any]) -> None:
        """All objects of a group."""
        self._found[group] = {}
        for found in objects:
            self._take(group, found, deleted=False)
        self.settle()

    def on_changed(self, group: str, found: Any, deleted: bool) -> None:
        """An object as it is now. One that cannot be read, or is of another pool, is none."""
        self._take(group, found, deleted)
        self.settle()

    def settle(self) -> None:
        """Called once they have changed."""

    def _take(self, group: str, found: Any, deleted: bool) -> None:
        metadata = found.get("metadata") if isinstance(found, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if not isinstance(name, str):
            return
        self._found[group].pop(name, None)
        if deleted:
            return
        spec = found.get("spec") or {}
        ref = spec.get("poolRef") if isinstance(spec, Mapping) else None
        if self._pool is not None and not (
            isinstance(ref, Mapping) and ref.get("name") == self._pool
        ):
            return
        try:
            self._found[group][name] = self._read(found)
        except ValueError as error:
            log.warning(
                f"this {self._kind} has no effect: it cannot be read",
                name=name[:253],
                error=str(error)[:300],
            )
