"""Directory: which models there are, and who answers for each."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ...server.pool import WorkerPool
from ...transport.http1 import Handler
from ..completions import Completions


class ModelEntry(NamedTuple):
    """A model as clients see it. `parent` is the model that another name, or an adapter, is of."""

    name: str
    context_limit: int
    parent: str = ""


class Answering(Protocol):
    """Workers that answer for a model."""

    @property
    def share(self) -> float:
        """Of the model's requests; 0: they take none now."""
        ...

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By route."""
        ...

    def has_worker(self, worker_id: int) -> bool: ...


SomeAnswering = TypeVar("SomeAnswering", bound=Answering)


class Directory(Protocol):
    """The models of one frontend."""

    @property
    def entries(self) -> Sequence[ModelEntry]: ...

    @property
    def any_ready(self) -> bool:
        """Whether a worker of any model takes requests."""
        ...

    @property
    def report(self) -> dict[str, Any]:
        """What is to be seen of each pool, and of cards that get no requests; as JSON."""
        ...

    def find(self, name: str) -> Sequence[Answering]:
        """Who answers for a model; nobody if there is none of this name."""
        ...


class OneModel:
    """The one model of a router: by whatever name its engines call it, if it was given none."""

    def __init__(self, completions: Completions, pool: WorkerPool) -> None:
        self._completions, self._pool = completions, pool

    @property
    def entries(self) -> Sequence[ModelEntry]:
        name = self._completions.name
        return [ModelEntry(name, self._completions.context_limit)] if name else []

    @property
    def any_ready(self) -> bool:
        return self._completions.any_ready

    @property
    def report(self) -> dict[str, Any]:
        pool = self._pool
        told = {
            "model": self._completions.name,
            "state": "serving",
            "reason": self._completions.parsers.reason,
            "context_length": self._completions.context_limit,
            "workers": pool.states,
            "share": self.share,
            "in_flight": pool.dispatcher.in_flight,
        }
        return {"pools": [told], "refused": []}

    @property
    def share(self) -> float:
        return float(len(self._pool.monitor.ready_clients()))

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return self._completions.routes

    def has_worker(self, worker_id: int) -> bool:
        return self._pool.has_worker(worker_id)

    def find(self, name: str) -> Sequence[Answering]:
        known = self._completions.name
        return [self] if not known or name == known else []


def in_order(pools: Sequence[SomeAnswering], rng: random.Random) -> list[SomeAnswering]:
    """All of them; one comes first as often as its share is of all shares. Those without a share
    come last."""
    ranks = {
        id(pool): rng.random() ** (1.0 / pool.share) if pool.share > 0 else -1.0 for pool in pools
    }
    return sorted(pools, key=lambda pool: ranks[id(pool)], reverse=True)
