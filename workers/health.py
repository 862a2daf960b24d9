"""The health monitor: learns who each configured engine is, and keeps the registry right about it.

One task per engine probes it; requests report what they met. Routing never waits for either:
it reads the registry. Judgement is in health_tracker.py.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

import grpc
import structlog

from ..runtime.clock import Clock
from ..runtime.errors import ConfigError, WorkerError
from .engine_facts import EngineFacts, merge_facts
from .health_tracker import HealthPolicy, HealthTracker
from .registry import WorkerRegistry, WorkerState
from .trtllm_client import EngineIdentity, TrtllmClient, WorkerUrl, parse_worker_url

PROBES_PER_DESCRIPTION = 12
"""An engine that is well is asked for its facts again with every so many probes."""

GREETED_AT_ONCE = 64
"""First probes at the same time. All of a large fleet at once would only wait for one another."""

log = structlog.get_logger(__name__)


class HealthMonitor:
    """The engines given by address, from `add` until `close`.

    Each is registered at once, CONNECTING, under the id of its URL or a hash of its address, and
    again under the id it announces. An engine with another block size, or an id that another
    address holds, is REFUSED. `listeners` are called after anything changed.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        clock: Clock,
        *,
        block_size: int,
        policy: HealthPolicy | None = None,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._block_size = block_size
        self._policy = policy or HealthPolicy()
        self._engines: dict[str, _Engine] = {}
        self._holders: dict[int, _Engine] = {}
        self._facts: EngineFacts | None = None
        self._greeting = asyncio.Semaphore(GREETED_AT_ONCE)
        self.listeners: list[Callable[[], None]] = []

    def add(self, url: str) -> None:
        """Watch one more engine; ConfigError if the URL is none, or known already."""
        parsed = parse_worker_url(url)
        if parsed.address in self._engines:
            raise ConfigError(f"worker {parsed.address} is given twice", key="workers")
        engine = _Engine(parsed, HealthTracker(self._policy, self._clock.now()))
        self._engines[parsed.address] = engine
        self._claim(engine, EngineIdentity(), WorkerState.CONNECTING)
        engine.task = asyncio.create_task(self._watch(engine), name=f"health-{parsed.address}")

    async def remove(self, url: str) -> None:
        """Stop watching an engine and take it out of the registry."""
        engine = self._engines.pop(parse_worker_url(url).address, None)
        if engine is not None:
            await engine.close()
            self._release(engine)
            self._changed()

    def client(self, worker_id: int) -> TrtllmClient | None:
        """The way to a worker's engine; None if it is not one that we were given the address of."""
        engine = self._holders.get(worker_id)
        return engine.client if engine is not None else None

    @property
    def facts(self) -> EngineFacts:
        """Of the engines that are ready, as if they were one."""
        if self._facts is None:
            self._facts = merge_facts(e.facts for e in self._holders.values() if e.is_ready)
        return self._facts

    @property
    def any_ready(self) -> bool:
        return any(engine.is_ready for engine in self._holders.values())

    def ready_clients(self) -> list[TrtllmClient]:
        return [engine.client for engine in self._holders.values() if engine.is_ready]

    def report_ok(self, worker_id: int) -> None:
        """A request of this worker ended well."""
        engine = self._holders.get(worker_id)
        if engine is not None:
            engine.tracker.on_request_ok()

    def report_failed(self, worker_id: int) -> None:
        """A request failed by this worker's fault."""
        self._report(worker_id, HealthTracker.on_request_failed)

    def report_lost(self, worker_id: int) -> None:
        """The connection to this worker broke under a request."""
        self._report(worker_id, HealthTracker.on_connection_lost)

    async def close(self) -> None:
        """Stop all probes and close all channels."""
        engines, self._engines = list(self._engines.values()), {}
        await asyncio.gather(*(engine.close() for engine in engines))

    def _report(self, worker_id: int, event: Callable[..., None]) -> None:
        engine = self._holders.get(worker_id)
        if engine is None:
            return
        # Requests alone never take the last ready engine away: a poisonous client could then
        # empty the fleet. Only a failed probe may.
        others = any(other.is_ready for other in self._holders.values() if other is not engine)
        event(engine.tracker, self._clock.now(), may_eject=others)
        self._publish(engine)
        engine.wake.set()

    async def _watch(self, engine: "_Engine") -> None:
        probes = 0
        while True:
            try:
                probes += 1
                if probes == 1:
                    async with self._greeting:
                        await self._probe(engine, describe=True)
                else:
                    await self._probe(engine, describe=probes % PROBES_PER_DESCRIPTION == 0)
            except Exception:  # a bug of ours must not end the watch over an engine
                log.exception("probe failed", address=engine.url.address)
                engine.tracker.on_probe_failed(self._clock.now(), "internal error")
                self._publish(engine)
            engine.wake.clear()
            while (wait := engine.tracker.next_probe - self._clock.now()) > 0:
                with contextlib.suppress(TimeoutError):
                    # Spread, so that a fleet that fell together is not asked in lockstep.
                    async with asyncio.timeout(wait * random.uniform(1.0, 1.2)):
                        await engine.wake.wait()
                        engine.wake.clear()

    async def _probe(self, engine: "_Engine", *, describe: bool) -> None:
        timeout = self._policy.probe_timeout_s
        try:
            identity = await engine.client.check_health(timeout=timeout)
            changed = identity.worker_id not in (None, engine.worker_id)
            if describe or changed or engine.tracker.state is not WorkerState.READY:
                said, facts = await engine.client.describe(timeout=timeout)
                self._admit(engine, _either(identity, said), facts)
            else:
                engine.tracker.on_probe_ok(self._clock.now())
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            engine.tracker.on_probe_failed(self._clock.now(), reason)
        except WorkerError as error:
            engine.tracker.on_probe_failed(self._clock.now(), str(error))
        self._publish(engine)

    def _admit(self, engine: "_Engine", identity: EngineIdentity, facts: EngineFacts) -> None:
        """An engine answered: take it in, or refuse it."""
        now = self._clock.now()
        engine.facts = facts
        their_size = facts.settings.get("kv_block_size", self._block_size)
        if their_size != self._block_size:
            reason = f"its KV block size is {their_size}, the router's is {self._block_size}"
            engine.tracker.on_refused(now, reason)
            return
        holder = self._claim(engine, identity, engine.tracker.state)
        if holder is not engine:
            reason = f"its worker id {identity.worker_id} is held by {holder.url.address}"
            engine.tracker.on_refused(now, reason)
            return
        engine.tracker.on_probe_ok(now)

    def _claim(self, engine: "_Engine", identity: EngineIdentity, state: WorkerState) -> "_Engine":
        """Register an engine under its id, unless another one holds that; return who holds it."""
        worker_id = engine.url.default_id if identity.worker_id is None else identity.worker_id
        holder = self._holders.setdefault(worker_id, engine)
        if holder is not engine:
            return holder
        if engine.worker_id not in (None, worker_id):
            log.info("worker has a new id", address=engine.url.address, worker_id=worker_id)
            self._release(engine)
        engine.worker_id = worker_id
        self._registry.add(
            worker_id,
            dp_size=identity.dp_size or 1,
            address=engine.url.address,
            total_kv_blocks=engine.facts.settings.get("total_kv_blocks"),
            max_num_batched_tokens=engine.facts.settings.get("max_num_batched_tokens"),
            state=state,
        )
        return engine

    def _release(self, engine: "_Engine") -> None:
        if engine.worker_id is not None:
            del self._holders[engine.worker_id]
            self._registry.remove(engine.worker_id)
            engine.worker_id = None

    def _publish(self, engine: "_Engine") -> None:
        """Bring the registry up to date with an engine's tracker."""
        tracker, worker_id = engine.tracker, engine.worker_id
        entry = self._registry.entry(worker_id) if worker_id is not None else None
        if entry is not None:
            if (entry.state, entry.reason) != (tracker.state, tracker.reason):
                self._registry.set_state(entry.worker_id, tracker.state, tracker.reason)
            if entry.inhibited_until != tracker.inhibited_until:
                self._registry.inhibit(entry.worker_id, tracker.inhibited_until)
        told, engine.told = engine.told, (tracker.state, tracker.reason, engine.facts)
        if engine.told == told:
            return
        if told is None or told[0] is not tracker.state or not told[1]:
            event = log.info if tracker.state is WorkerState.READY else log.warning
            said = {"reason": tracker.reason} if tracker.reason else {}
            address = engine.url.address
            event(f"worker {tracker.state.value}", address=address, worker_id=worker_id, **said)
        self._changed()

    def _changed(self) -> None:
        self._facts = None  # made when asked for: a large fleet changes often while it starts
        for listener in self.listeners:
            listener()


class _Engine:
    """One watched engine."""

    def __init__(self, url: WorkerUrl, tracker: HealthTracker) -> None:
        self.url = url
        self.tracker = tracker
        self.client = TrtllmClient(url.address)
        self.facts = EngineFacts()
        self.worker_id: int | None = None  # the id it is registered under
        self.told: tuple[WorkerState, str, EngineFacts] | None = None  # what _publish saw last
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        return self.tracker.state is WorkerState.READY

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        await self.client.close()


def _either(first: EngineIdentity, second: EngineIdentity) -> EngineIdentity:
    return EngineIdentity(
        second.worker_id if first.worker_id is None else first.worker_id,
        second.dp_size if first.dp_size is None else first.dp_size,
    )
