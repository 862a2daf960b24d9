"""The indexes that the benchmark measures side by side, behind one small interface.

Each adapter turns the workload's arrays into its index's arguments before the clock runs.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from ....base.errors import RouterError
from ....indexer.tree import RadixTree
from .workload import CacheEvents, Prompt, Removed, Stored


class IndexAdapter(Protocol):
    """An index under test, empty when made. The timed calls get what `ready_*` returned."""

    def ready_store(self, op: Stored) -> Any: ...
    def ready_match(self, op: Prompt) -> Any: ...
    def ready_remove(self, op: Removed) -> Any: ...
    def store(self, ready: Any, /) -> None: ...
    def match(self, ready: Any, /) -> object: ...
    def remove(self, ready: Any, /) -> None: ...
    def remove_worker(self, worker: int, /) -> None: ...

    def scores(self, matched: Any) -> dict[int, int]:
        """Worker to overlap, of what `match` returned; not timed, to compare the indexes."""
        ...


class Arrays:
    """Ours as the router uses it: arrays in, an array of overlaps by worker number out."""

    def __init__(self, tree: Any = None) -> None:
        self._tree: Any = RadixTree() if tree is None else tree
        self._numbers: dict[int, int] = {}
        self._overlaps = np.zeros(0, np.uint32)

    def ready_store(self, op: Stored) -> Any:
        return op.worker, op.parent, op.sequence_hashes, op.local_hashes

    def ready_match(self, op: Prompt) -> Any:
        return op.local_hashes

    def ready_remove(self, op: Removed) -> Any:
        return op.worker, op.sequence_hashes

    def store(self, ready: Any, /) -> None:
        self._tree.store(*ready)
        if ready[0] not in self._numbers:
            self._bind(ready[0])

    def match(self, ready: Any, /) -> object:
        self._tree.match_bound(ready, self._overlaps)
        return self._overlaps

    def remove(self, ready: Any, /) -> None:
        self._tree.remove(*ready)

    def remove_worker(self, worker: int, /) -> None:
        self._tree.remove_worker(worker)
        self._numbers.pop(worker, None)

    def scores(self, matched: Any) -> dict[int, int]:
        workers = {number: worker for worker, number in self._numbers.items()}
        return {workers[n]: int(matched[n]) for n in np.flatnonzero(matched).tolist()}

    def _bind(self, worker: int) -> None:
        number = self._numbers[worker] = len(self._overlaps)
        self._tree.bind(worker, number)
        self._overlaps = np.zeros(number + 1, np.uint32)


class Lists(Arrays):
    """Ours with the peer's kind of input and output: lists in, a dict out."""

    def ready_store(self, op: Stored) -> Any:
        return op.worker, op.parent, op.sequence_hashes.tolist(), op.local_hashes.tolist()

    def ready_match(self, op: Prompt) -> Any:
        return op.local_hashes.tolist()

    def ready_remove(self, op: Removed) -> Any:
        return op.worker, op.sequence_hashes.tolist()

    def match(self, ready: Any, /) -> object:
        return self._tree.match(ready).scores

    def scores(self, matched: Any) -> dict[int, int]:
        return _by_worker_id(matched)


class Events(Arrays):
    """Ours through Dynamo's own calls: JSON events in, a dict out."""

    def __init__(self, tree: Any = None) -> None:
        super().__init__(tree)
        self._ready = CacheEvents()

    def ready_store(self, op: Stored) -> Any:
        return self._ready.store(op)

    def ready_match(self, op: Prompt) -> Any:
        return op.local_hashes.tolist()

    def ready_remove(self, op: Removed) -> Any:
        return self._ready.remove(op)

    def store(self, ready: Any, /) -> None:
        self._tree.apply_event(*ready)

    def match(self, ready: Any, /) -> object:
        return self._tree.find_matches(ready).scores

    def remove(self, ready: Any, /) -> None:
        self._tree.apply_event(*ready)

    def scores(self, matched: Any) -> dict[int, int]:
        return _by_worker_id(matched)


class Dynamo(Events):
    """NVIDIA Dynamo's RadixTree, if its wheel (ai-dynamo-runtime) is installed."""

    def __init__(self) -> None:
        core = dynamo_core()
        if core is None:
            raise RouterError("the package ai-dynamo-runtime is not installed")
        super().__init__(core.RadixTree())


def _by_worker_id(scores: Mapping[tuple[int, int], int]) -> dict[int, int]:
    return {worker_id: overlap for (worker_id, _), overlap in scores.items()}


def available_adapters() -> dict[str, Callable[[], IndexAdapter]]:
    """Every index that can be measured here, by the name it has in reports."""
    ours: dict[str, Callable[[], IndexAdapter]]
    ours = {"arrays": Arrays, "lists": Lists, "events": Events}
    return ours if dynamo_core() is None else {**ours, "dynamo": Dynamo}


def dynamo_core() -> Any:
    """The native module of NVIDIA Dynamo's wheel, None where that is not installed."""
    try:
        return import_module("dynamo._core")
    except ImportError:
        return None
