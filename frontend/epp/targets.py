"""Which pools a request may go to, by the model that it names: the one of a router, or those that
a frontend finds."""

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from ...base.errors import NoWorkersError
from ...server.dispatch import RequestReader
from ...server.pool import WorkerPool
from ..engine_requests import PromptReader
from ..models import AdapterPool, ModelManager, ModelPool, in_order
from ..openai import BAD_BODY, unknown_model
from ..processor import ModelText
from .endpoints import Endpoints


class PickPool:
    """A pool, and what a picker needs of it."""

    def __init__(self, workers: WorkerPool, text: ModelText, endpoint_port: int | None) -> None:
        self.workers = workers
        self.prompts = PromptReader(text, workers.reader)
        self.endpoints = Endpoints(workers.router, endpoint_port)


class Target(NamedTuple):
    """Where a request may go, and as what."""

    pool: PickPool
    model: str
    """the name by which its engines know the model"""
    adapter: str | None
    """the LoRA adapter that its cached blocks are of"""
    known: bool
    """whether the model is one of ours, of which there are few: a label of metrics"""


class Targets(Protocol):
    """The pools in front of which a picker stands."""

    @property
    def reader(self) -> RequestReader:
        """Of requests whose pool is not known yet."""
        ...

    @property
    def names(self) -> list[str]:
        """Of all models."""
        ...

    @property
    def any_ready(self) -> bool:
        """Whether a worker takes requests."""
        ...

    def find(self, name: str) -> Sequence[Target]:
        """Those of a model, the one to try first at the head. ApiError 404 if no model has this
        name."""
        ...

    def plain(self, body: bytes) -> PickPool:
        """For a request whose prompt, if it has one, is not read. NoWorkersError if there is no
        pool, ApiError 404 for a model that is none of ours."""
        ...


class OneTarget:
    """The one pool of a router. `name`: the only one that clients may call its model by, beside
    that of its engines; None: the engines judge the name."""

    def __init__(self, pool: PickPool, name: str | None) -> None:
        self._pool, self._name = pool, name
        self.reader = pool.workers.reader

    @property
    def names(self) -> list[str]:
        found = (self._name, self._pool.workers.monitor.facts.model_id)
        return [name for name in dict.fromkeys(found) if name]

    @property
    def any_ready(self) -> bool:
        return self._pool.workers.monitor.any_ready

    def find(self, name: str) -> Sequence[Target]:
        own = self._pool.workers.monitor.facts.model_id
        if self._name is not None:
            if name not in self.names:
                raise unknown_model(name, self.names)
            name = own or name
        known = name in self.names
        return [Target(self._pool, name, name if own and not known else None, known)]

    def plain(self, body: bytes) -> PickPool:
        return self._pool


class ModelTargets:
    """The pools of the models that a frontend finds."""

    def __init__(
        self,
        models: ModelManager,
        endpoint_port: int | None,
    ) -> None:
        self._models, self._port = models, endpoint_port
        self._rng = random.Random()
        self.reader = models.reader

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self._models.entries]

    @property
    def any_ready(self) -> bool:
        return self._models.any_ready

    def find(self, name: str) -> Sequence[Target]:
        pools = in_order(self._models.find(name), self._rng)
        found = [target for pool in pools if (target := self._target(name, pool)) is not None]
        if not found:
            raise unknown_model(name, self.names)
        return found

    def plain(self, body: bytes) -> PickPool:
        name = _model_of(body)
        if name is None:
            entries = self._models.entries
            name = next((entry.name for entry in entries if self._models.find(entry.name)), "")
            if not name:
                raise NoWorkersError("no worker of any model is registered")
        return self.find(name)[0].pool

    def _target(self, name: str, found: ModelPool | AdapterPool) -> Target | None:
        """None for a pool whose files are not read yet."""
        if isinstance(found, AdapterPool):
            pool, adapter = found.pool, found.number
        else:
            pool, adapter = found, None
        if pool.workers is None or pool.text is None:
            return None
        return Target(PickPool(pool.workers, pool.text, self._port), name, adapter, known=True)


class _Named(msgspec.Struct):
    model: str | None = None


_NAMED = msgspec.json.Decoder(_Named)
READ_FOR_A_NAME = 1 << 20
"""Bytes of a body up to which the model is looked for in what is no prompt."""


def _model_of(body: bytes) -> str | None:
    """The model that a body names; None if it names none, or is no JSON."""
    if len(body) > READ_FOR_A_NAME:
        return None
    try:
        return _NAMED.decode(body).model
    except BAD_BODY:
        return None
