"""MockServer: one mock engine, served, with its faults."""

import asyncio
from dataclasses import replace

from ...base.clock import Clock, SystemClock
from ...runtime.event_planes import EventPlane
from ...runtime.kv_stores import KeyValueStore
from ...transport.security import ServerTls
from ..prefill_queue import QueueMetrics
from ..serving import EngineServer, WorkerRegistration, metadata_bucket
from ..transfer import TransferMetrics
from .config import MockerConfig, parse_speeds
from .disaggregation import DisaggregationRole
from .dp_engine import DataParallelEngine
from .engine import MockEngine
from .faults import HEALTHY, Fault, FaultyPlane
from .faulty_serving import FaultyCalls, FaultyFeed
from .handovers import BlockMoves, FindMetadata
from .queued_prefills import EngineQueue
from .served import ServedMock


class MockServer:
    """Engine number `index` of a mocker: from `start` to `stop` it listens, runs and publishes."""

    def __init__(
        self,
        config: MockerConfig,
        index: int,
        *,
        plane: EventPlane | None = None,
        clock: Clock | None = None,
        tls: ServerTls | None = None,
        registration: WorkerRegistration | None = None,
        store: KeyValueStore | None = None,
        metrics: TransferMetrics | None = None,
        queues: QueueMetrics | None = None,
    ) -> None:
        """`registration`: under which it is found; without one it is not. `store`: where other
        engines are. `metrics`, `queues`: where transfers and queued prompts are counted, if those
        of others are counted there."""
        self.registration = registration
        self._store = store
        self._metrics = metrics or TransferMetrics()
        self._queues = queues or QueueMetrics()
        self.worker_id = -1  # until it listens, if it depends on the address
        self.address = ""
        self.fault = HEALTHY
        given = config.worker_id
        self._config = replace(
            config,
            workers=1,
            port=config.port + index if config.port else 0,
            worker_id=None if given is None else given + index,
        )
        self._plane = FaultyPlane(plane) if plane is not None else None
        self._clock = clock or SystemClock()
        self._tls = tls
        speeds = parse_speeds(config.worker_speeds)
        self._speedup = config.speedup_ratio * speeds[index % len(speeds)]
        self._changing = asyncio.Lock()
        self._listens = False
        self._build()

    def _build(self) -> None:
        """New ranks with empty caches."""
        engine = ServedMock(
            self._config.engine,
            speedup_ratio=self._speedup,
            clock=self._clock,
            role=self._role,
            transfer_s=self._config.transfer_s,
            moves=self._moves(),
        )
        self.ranks: DataParallelEngine = engine.ranks
        self.moves = engine.moves
        self.queue: EngineQueue | None = None
        if self._config.queue.prefill_queue:
            self.queue = EngineQueue(
                self._config, engine, self._queues, self._store, self._find_metadata()
            )
        self._feed = FaultyFeed(engine, self.ranks.awake)
        self._calls = FaultyCalls(self.ranks.awake)
        self._served = EngineServer(
            self._config,
            engine,
            plane=self._plane,
            clock=self._clock,
            tls=self._tls,
            registration=self.registration,
            feed=self._feed,
            around=self._calls.around,
        )

    def _moves(self) -> BlockMoves | None:
        config = self._config
        if config.moves.transfer is None:
            return None
        return BlockMoves(
            config.moves,
            self._metrics,
            hands_over=config.disaggregation_mode == "prefill",
            find_metadata=self._find_metadata(),
            seconds_of=self._moving_s,
        )

    def _find_metadata(self) -> FindMetadata | None:
        config = self._config
        if self._store is None or self.registration is None or not config.stores_metadata:
            return None
        bucket = self._store.bucket(metadata_bucket(config.namespace))

        async def find(engine_id: str) -> bytes | None:
            entry = await bucket.get(engine_id)
            return None if entry is None else entry.value

        return find

    def _moving_s(self, size: int) -> float:
        """How long prompts take whose contents in an arena would have this size."""
        config = self._config
        blocks = size // config.moves.transfer_block_bytes
        return config.transfer_s(blocks * config.engine.block_size) / self._speedup

    def _role(self) -> DisaggregationRole:
        config = self._config
        return DisaggregationRole(
            config.disaggregation_mode,
            self._served.worker_id,
            config.model_id,
            config.engine.block_size,
        )

    @property
    def engine(self) -> MockEngine:
        """The engine, or its rank 0."""
        return self.ranks.engines[0]

    @property
    def url(self) -> str:
        """Where it listens: grpc:// or, with TLS, grpcs://."""
        return self._served.url

    @property
    def busy(self) -> bool:
        """Whether requests are here that have not been answered."""
        return self.ranks.busy

    async def start(self, first_event_id: int = 1) -> None:
        """Listen and run. ConfigError if the port cannot be had."""
        await self._served.start(first_event_id)
        self._listens = True
        self.worker_id, self.address = self._served.worker_id, self._served.address
        self._config = replace(self._config, port=self._served.port)
        if self.queue is not None:
            self.queue.start(self.worker_id)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no more requests, let those here finish for `grace_s`, end the rest. Idempotent."""
        if self.queue is not None:
            await self.queue.drain(grace_s)
        await self._served.stop(grace_s)
        self._listens = False
        if self.queue is not None:
            await self.queue.close()
        if self._plane is not None:
            await self._plane.close()

    async def kill(self) -> None:
        """Be gone at once, as a process that crashed: connections break, nothing is announced."""
        self._listens = False
        if self.queue is not None and self.queue.consumer is not None:
            await self.queue.close(killed=True)
        await self._served.kill()
        if self.queue is not None:
            await self.queue.close(killed=True)

    async def set_fault(self, fault: Fault) -> None:
        """Be as `fault` says from now on. ConfigError if it cannot listen again after a crash."""
        async with self._changing:
            if fault.crash:
                await self.kill()
            elif not self._listens:
                await self._start_again(1)
            self.fault = self._calls.fault = fault
            self.ranks.slow_down(fault.slow)
            self.ranks.hang(fault.hang)
            self._feed.set_fault(fault)
            if self._plane is not None:
                await self._plane.set_fault(fault)

    async def restart(self, first_event_id: int = 0) -> None:
        """Crash, and be back in place: healthy, empty, events numbered from `first_event_id`."""
        async with self._changing:
            await self.kill()
            await self._start_again(first_event_id)
            self.fault = HEALTHY
            if self._plane is not None:
                await self._plane.set_fault(HEALTHY)

    async def _start_again(self, first_event_id: int) -> None:
        self._build()
        await self.start(first_event_id)
