"""The parts of mock engines in a prefill queue: decode engines put prompts there, prefill engines
compute them. Each engine has a connection of its own, as a process would."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from ...base.errors import WorkerError
from ...base.urls import DEFAULT_NATS_URL
from ...runtime.kv_stores import KeyValueStore, NatsAddress, NatsConnection, StoreError
from ...runtime.work_queues import WorkQueue
from ...transport.security import NatsAuth
from ...workers.handoffs import RemotePrefillHint, read_hint
from ..prefill_queue import (
    ComputedPrompt,
    PrefillConsumer,
    PrefillThresholds,
    QueueMetrics,
    QueueNames,
    RemotePrefillRequest,
    RemotePrefills,
    Thresholds,
)
from ..serving import EngineRequest, EngineUnavailableError
from ..transfer import Transfer
from .config import MockerConfig
from .handovers import FindMetadata, RankTransfers
from .live import first_news
from .served import ServedMock

_LOOK_S = 0.02


class EngineQueue:
    """One engine's part, from `start` to `close`; once."""

    def __init__(
        self,
        config: MockerConfig,
        engine: ServedMock,
        metrics: QueueMetrics,
        store: KeyValueStore | None,
        find_metadata: FindMetadata | None,
    ) -> None:
        """`store`: where thresholds are; `find_metadata`: see RemotePrefills."""
        self._config, self._engine, self._metrics = config, engine, metrics
        self._store, self._find = store, find_metadata
        url = config.nats or DEFAULT_NATS_URL
        self._connection = NatsConnection(NatsAddress(url, NatsAuth(config.nats_auth)))
        queue = config.queue
        self._names = QueueNames.of(config.namespace, config.model_id, queue.prefill_queue_scope)
        self._queue = WorkQueue(self._connection, self._names.settings(queue))
        self.consumer: PrefillConsumer | None = None
        """of a prefill engine"""
        self._remotes: list[RemotePrefills] = []
        self._thresholds: Thresholds | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the queue is there, and the engine has its place at it."""
        if self.consumer is not None:
            return self.consumer.is_reading
        return bool(self._remotes) and all(each.is_ready for each in self._remotes)

    def start(self, worker_id: int) -> None:
        """Take part, from when NATS is there. The engine has started."""
        config, moves = self._config, self._engine.moves
        assert moves is not None
        if config.disaggregation_mode == "prefill":
            self.consumer = PrefillConsumer(
                self._queue,
                self._names,
                config.queue,
                _Computer(self._engine),
                self._metrics,
                worker_id=worker_id,
                model=config.model_id,
                find_metadata=self._find,
            )
            self.consumer.on_written.append(
                lambda transfer, ticket: moves.metrics.observe(transfer.kind, "write", ticket)
            )
            self.consumer.start()
            return
        own = config.queue.max_local_prefill_length, config.queue.max_prefill_queue_size
        self._thresholds = Thresholds(
            PrefillThresholds(*own),
            self._store,
            namespace=config.namespace,
            model=config.model_id,
        )
        for rank in moves.ranks:
            rank.remote = RemotePrefills(
                self._queue,
                self._names,
                config.queue,
                rank.transfer,
                self._metrics,
                model=config.model_id,
                find_metadata=self._find,
            )
            self._remotes.append(rank.remote)
            rank.remote.start()
        self._engine.queue = self

    async def divided(
        self, request: EngineRequest
    ) -> tuple[EngineRequest, RemotePrefillHint | None]:
        """A request as its engine runs it, and the hint with which its prompt is put into the
        queue; None: the engine computes it itself."""
        given = None if request.handoff is None else read_hint(request.handoff)
        if request.handoff is not None and given is None:
            return request, None  # a parcel
        local = replace(request, phase=None, handoff=None)
        assert self._thresholds is not None
        found = None
        if given is not None:
            found = PrefillThresholds(given.max_local_prefill_length, given.max_prefill_queue_size)
        limits = self._thresholds.found(found)
        decides = given is not None or self._thresholds.are_given
        if not decides or request.answers != 1 or not self.is_ready:
            return local, None
        live = self._engine.ranks.rank_for(request)
        if limits.is_short(live.engine.uncached_tokens(request)):
            return local, None
        if limits.max_prefill_queue_size is not None:
            try:
                if limits.is_full(await self._remotes[0].queued()):
                    return local, None
            except StoreError:
                return local, None
        hint = given or RemotePrefillHint()
        return replace(local, handoff=hint.encode()), hint

    async def drain(self, grace_s: float) -> None:
        """Of a prefill engine: take no more, and finish what it has within that time."""
        if self.consumer is None:
            return
        self.consumer.drain()
        ends_at = time.monotonic() + grace_s
        while self.consumer.active and time.monotonic() < ends_at:
            await asyncio.sleep(_LOOK_S)

    async def close(self, *, killed: bool = False) -> None:
        """What it has goes to others; if it is killed, once they notice. Idempotent."""
        if self.consumer is not None:
            await (self.consumer.kill() if killed else self.consumer.close())
        for remote in self._remotes:
            await remote.close()
        if self._thresholds is not None:
            await self._thresholds.close()
        with suppress(StoreError):
            await self._connection.close()


class _Computer:
    """See PromptComputer."""

    def __init__(self, engine: ServedMock) -> None:
        assert engine.moves is not None
        self._engine, self._moves = engine, engine.moves

    @property
    def transfer(self) -> Transfer[Any]:
        return self._moves.ranks[0].transfer

    @asynccontextmanager
    async def compute(self, request: RemotePrefillRequest) -> AsyncIterator[ComputedPrompt]:
        engine = self._engine
        await engine.ranks.awake()
        asked = EngineRequest(
            request_id=f"{request.request_id}\x1f{request.attempt}",
            token_ids=request.token_ids(),
            max_tokens=1,
            lora_name=request.lora_name,
            cache_namespace=request.cache_salt,
        )
        streams = engine.submit(asked)
        (stream,) = streams
        try:
            while not stream.done:
                await first_news(streams)
            if stream.failure is not None:
                raise stream.failure
            offer = stream.sequence.offer
            if stream.aborted or offer is None:
                raise EngineUnavailableError(engine.ranks.failure or "the prompt was not computed")
            rank = self._rank_of(offer.engine_id)
            rank.hold(offer.attempt)
            yield ComputedPrompt(rank.transfer, list(offer.blocks), stream.sequence.prompt_hashes())
        finally:
            engine.release(streams)
            if (kept := stream.sequence.offer) is not None:  # also if it was not held yet
                self._rank_of(kept.engine_id).end_lease(kept.attempt)

    def _rank_of(self, engine_id: str) -> RankTransfers:
        for rank in self._moves.ranks:
            if rank.transfer.engine_id == engine_id:
                return rank
        raise WorkerError("the rank that computed the prompt is gone")
