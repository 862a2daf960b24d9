"""What a served engine writes about itself into the store where routers look for workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from ...base.identity import WorkerWithDpRank
from ...runtime.components import EndpointName, Instance
from ...runtime.discovery import Registrations
from ...runtime.event_planes import KV_EVENTS, endpoint_subject
from ...runtime.kv_stores import KeyValueStore, StoreError
from ...runtime.request_planes import RequestServer
from ...workers.records import (
    TRTLLM,
    ModelCard,
    PublisherRecord,
    encode_card,
    event_channel,
    event_source,
)
from ..outbox import StoredRun
from ..publisher import KvEventPublisher
from .config import ServingConfig
from .dynamo_endpoints import DynamoEndpoints
from .dynamo_recovery import RankEvents
from .engine import ServedEngine, TransferringEngine

STARTUP_TIMEOUT_S = 120.0

log = structlog.get_logger(__name__)


class WorkerRegistration:
    """One engine's lease, and its keys under it: event channels, card, instance, in this order.

    Where a key is lost with its lease, it is written again. With `requests` the engine is a
    worker as Dynamo's are, served there; else one that is called over gRPC.
    """

    def __init__(
        self,
        store: KeyValueStore,
        config: ServingConfig,
        files: Mapping[str, Any],
        requests: RequestServer | None = None,
        *,
        kind: Mapping[str, Any] | None = None,
    ) -> None:
        """`files`: the part of the card that names the model's files; `kind`: fields of the card
        that say what kind of worker it is, if it is no aggregated one. The store and the server are
        shared, and their owner's to close."""
        self._store, self._config = store, config
        self._name = EndpointName(config.namespace, config.component, config.endpoint)
        self._registrations = Registrations(store, config.lease_ttl_s)
        self._requests = requests
        self._files = dict(files)
        self._kind = kind or {}
        self._instance: Instance | None = None
        self._others: list[Instance] = []
        self._endpoints: DynamoEndpoints | None = None

    @property
    def complete(self) -> bool:
        """Whether the store has all of it, as far as we know."""
        return self._registrations.complete

    async def start(self, worker_id: int | None) -> int:
        """Get a lease; the worker's id: that of the lease, if none is given. StoreError."""
        await self._registrations.start(STARTUP_TIMEOUT_S)
        return self._registrations.lease if worker_id is None else worker_id

    async def announce(
        self,
        worker_id: int,
        url: str,
        engine: ServedEngine,
        publishers: Sequence[KvEventPublisher],
        snapshot: Callable[[int], list[StoredRun]],
    ) -> None:
        """Be found. It is found later if the store is away."""
        name, config = self._name, self._config
        recovery: list[Instance | None] = [None] * len(publishers)
        instance = Instance(name, worker_id, TRTLLM, url)
        if self._requests is not None:
            events = [
                RankEvents(publisher, lambda rank=rank: snapshot(rank))  # type: ignore[misc]
                for rank, publisher in enumerate(publishers)
            ]
            host = config.advertise_host or config.host
            self._endpoints = DynamoEndpoints(self._requests, host, name, worker_id, engine, events)
            instance = self._endpoints.instance
            recovery = list(self._endpoints.recovery)
            self._others = self._endpoints.others
        subject = endpoint_subject(name.namespace, name.component, name.endpoint, KV_EVENTS)
        for rank, (publisher, target) in enumerate(zip(publishers, recovery, strict=True)):
            worker = WorkerWithDpRank(worker_id, rank)
            source = PublisherRecord(worker, publisher.publisher_id, target)
            prefix = subject.removesuffix(f".{KV_EVENTS}")
            if not config.plane.is_zmq:  # its plane lets itself be found
                await self._register(*event_channel(name, publisher.publisher_id, prefix))
            await self._register(*event_source(name, source))
            if target is not None:
                await self._register(*target.key(config.generation), target.value())
        if isinstance(engine, TransferringEngine) and config.stores_metadata:
            for engine_id, metadata in engine.transfer_metadata().items():
                await self._register(metadata_bucket(name.namespace), engine_id, metadata)
        card = replace(card_of(engine, config), **self._kind)
        generation = config.generation
        await self._register(*encode_card(card, name, worker_id, self._files, generation))
        self._instance = instance
        for each in (*self._others, instance):
            await self._register(*each.key(generation), each.value())

    async def withdraw(self) -> None:
        """Be found by no new client; what is under way may end."""
        instance, self._instance = self._instance, None
        for each in () if instance is None else (instance, *self._others):
            try:
                await self._registrations.unregister(*each.key(self._config.generation))
            except StoreError as error:
                log.warning("an instance stays until its lease ends", error=str(error))
        if self._endpoints is not None:
            self._endpoints.close()

    async def drained(self, timeout_s: float) -> None:
        """Return once no answer is under way that came over the request plane, at most so late."""
        if self._requests is not None and timeout_s > 0:
            await self._requests.drain(timeout_s)

    async def abandon(self) -> None:
        """Renew the lease no more, as a process that crashed. After `start` it is another one."""
        await self._registrations.abandon()
        self._registrations = Registrations(self._store, self._config.lease_ttl_s)
        if self._endpoints is not None:
            self._endpoints.close()

    async def close(self) -> None:
        """Give the lease back, and all keys with it. Idempotent."""
        await self.withdraw()
        await self._registrations.close()

    async def _register(self, bucket: str, key: str, value: bytes) -> None:
        try:
            await self._registrations.register(bucket, key, value)
        except StoreError as error:
            log.warning("registered later: the store is away", key=key, error=str(error))


def metadata_bucket(namespace: str) -> str:
    """Where engines whose blocks are read or written have their metadata, by engine id: the design
    documents' `{namespace}/nixl_metadata/{engine_id}`."""
    return f"{namespace}/nixl_metadata"


def card_of(engine: ServedEngine, config: ServingConfig) -> ModelCard:
    """What an engine says of itself, without the model's files."""
    facts = engine.facts
    return ModelCard(
        name=config.model_id or facts.model_id,
        block_size=facts.settings["kv_block_size"],
        context_length=facts.max_seq_len,
        total_kv_blocks=facts.settings.get("total_kv_blocks"),
        max_num_seqs=facts.settings.get("max_num_seqs"),
        max_num_batched_tokens=facts.settings.get("max_num_batched_tokens"),
        dp_size=engine.dp_size,
        aliases=_names(config.aliases),
    )


def _names(text: str) -> tuple[str, ...]:
    """Those in a list with commas."""
    words = (word.strip() for word in text.split(","))
    return tuple(word for word in words if word)
