"""The health monitor: learns who each configured engine is, and keeps the registry right about it.

One task per engine probes it; requests report what they met. Routing never waits for either:
it reads the registry. Judgement is in health_tracker.py and outliers.py.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import grpc
import structlog

from ..runtime.clock import Clock
from ..runtime.errors import ConfigError, WorkerError
from ..runtime.security import ClientTls, WorkerTlsConfig
from ..runtime.supervised import supervise
from .engine_facts import EngineFacts, merge_facts
from .failures import Origin, shortened
from .health_tracker import HealthPolicy, HealthTracker
from .outliers import OutlierPolicy
from .prompt_limits import PromptLimits
from .registry import WorkerRegistry, WorkerState
from .request_reports import RequestReports
from .trtllm_client import (
    ConnectionPolicy,
    EngineIdentity,
    TrtllmClient,
    parse_worker_url,
)
from .watched_engine import WatchedEngine

PROBES_PER_DESCRIPTION = 12
"""An engine that is well is asked for its facts again with every so many probes."""

FIRST_PROBES_AT_ONCE = 64
"""First probes at the same time. All of a large fleet at once would only wait for one another."""

PROBES_TO_LOSE_ID = 3
"""Failed probes in a row after which a successor may have an engine's id."""

SUSPECTED_AGAIN_S = 1.0
"""Least time between two probes of an engine that is silent."""

log = structlog.get_logger(__name__)


class HealthMonitor:
    """The engines given by address, from `add` until `close`.

    Each is registered at once, CONNECTING, under the id of its URL or a hash of its address, and
    again under the id it announces. REFUSED is an engine with another block size, one of another
    model than most, unless `mixed_models`, and one whose id a live engine of another address has.
    `reports` takes what requests tell. `listeners` are called after anything changed, `on_down`
    with the id of a worker that was ready and is so no more.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        clock: Clock,
        *,
        block_size: int,
        policy: HealthPolicy | None = None,
        outliers: OutlierPolicy | None = None,
        connection: ConnectionPolicy | None = None,
        mixed_models: bool = False,
        tls: ClientTls | None = None,
    ) -> None:
        """`tls` is for engines at grpcs:// addresses; None: the system's authorities."""
        self._registry = registry
        self._clock = clock
        self._block_size = block_size
        self._policy = policy or HealthPolicy()
        self._connection = connection or ConnectionPolicy()
        self._mixed_models = mixed_models
        self._engines: dict[str, WatchedEngine] = {}
        self._holders: dict[int, WatchedEngine] = {}
        self._facts: EngineFacts | None = None
        self._limits: PromptLimits | None = None
        self._first_probes = asyncio.Semaphore(FIRST_PROBES_AT_ONCE)
        self._tls = tls
        self.reports = RequestReports(
            clock, outliers, on_changed=self._on_reported, on_lost=self._on_lost
        )
        self.listeners: list[Callable[[], None]] = []
        self.on_down: list[Callable[[int], None]] = []

    def add(self, url: str) -> None:
        """Watch one more engine; ConfigError if the URL is none, or known already."""
        parsed = parse_worker_url(url)
        if parsed.address in self._engines:
            raise ConfigError(f"worker {parsed.address} is given twice", key="workers")
        tracker = HealthTracker(self._policy, self._clock.now())
        if parsed.tls and self._tls is None:
            self._tls = ClientTls(WorkerTlsConfig())
        tls = self._tls if parsed.tls else None
        client = TrtllmClient(parsed.address, self._connection, tls)
        engine = WatchedEngine(parsed, tracker, client)
        self._engines[parsed.address] = engine
        self._claim(engine, EngineIdentity(), WorkerState.CONNECTING)
        engine.task = supervise(f"health-{parsed.address}", partial(self._watch, engine))

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
    def limits(self) -> PromptLimits:
        """What prompts each engine can take, of those that were admitted."""
        if self._limits is None:
            self._limits = PromptLimits(
                {
                    worker_id: engine.facts
                    for worker_id, engine in self._holders.items()
                    if engine.tracker.state is not WorkerState.REFUSED
                }
            )
        return self._limits

    @property
    def any_ready(self) -> bool:
        return any(engine.is_ready for engine in self._holders.values())

    def is_ready(self, worker_id: int) -> bool:
        """Whether a worker answers its probes and is not ejected."""
        engine = self._holders.get(worker_id)
        return engine is not None and engine.is_ready

    def ready_clients(self) -> list[TrtllmClient]:
        return [engine.client for engine in self._holders.values() if engine.is_ready]

    def ready_workers(self) -> list[tuple[int, TrtllmClient]]:
        """(worker id, way to it) of those that may be given a request."""
        now = self._clock.now()
        ready = [(w, engine) for w, engine in self._holders.items() if engine.is_ready]
        usable = [(w, e) for w, e in ready if self._inhibited_until(w, e) <= now]
        return [(w, engine.client) for w, engine in usable or ready]

    def suspect(self, worker_id: int, silent_s: float = 0.0) -> None:
        """A worker owes answers and has said nothing for so long, or may not be who it was: probe
        it, now and then."""
        engine, now = self._holders.get(worker_id), self._clock.now()
        if engine is None:
            return
        pause = min(max(SUSPECTED_AGAIN_S, silent_s / 2), self._policy.probe_interval_s)
        if not engine.probing and now - engine.probed_at >= pause:
            engine.tracker.on_suspicion(now)
            engine.wake.set()

    async def close(self) -> None:
        """Stop all probes and close all channels."""
        engines, self._engines = list(self._engines.values()), {}
        await asyncio.gather(*(engine.close() for engine in engines))

    def _on_lost(self, worker_id: int) -> None:
        """The connection to this worker broke under a request."""
        engine = self._holders.get(worker_id)
        if engine is None:
            return
        # Requests alone never take the last ready engine away. Only a failed probe may.
        others = any(other.alive for other in self._holders.values() if other is not engine)
        engine.tracker.on_connection_lost(self._clock.now(), may_inhibit=others)
        self._publish(engine)
        engine.wake.set()

    def _on_reported(self, worker_id: int) -> None:
        """Requests have changed who is out."""
        engine = self._holders.get(worker_id)
        if engine is not None:
            self._publish(engine)
            engine.wake.set()
        self._publish_troubled(engine)

    def _publish_troubled(self, done: WatchedEngine | None) -> None:
        """Who is out may depend on how many others are."""
        for worker_id in self.reports.outliers.troubled:
            engine = self._holders.get(worker_id)
            if engine is not None and engine is not done:
                self._publish(engine)

    async def _watch(self, engine: WatchedEngine) -> None:
        while True:
            try:
                engine.probes += 1
                engine.probing, engine.probed_at = True, self._clock.now()
                if engine.probes == 1:
                    async with self._first_probes:
                        await self._probe(engine, describe=True)
                else:
                    describe = engine.probes % PROBES_PER_DESCRIPTION == 0
                    await self._probe(engine, describe=describe)
            except Exception:  # a bug of ours must not end the watch over an engine
                log.exception("probe failed", address=engine.url.address)
                engine.tracker.on_probe_failed(self._clock.now(), "internal error")
                self._publish(engine)
            finally:
                engine.probing = False
            engine.wake.clear()
            while (wait := self._next_look(engine) - self._clock.now()) > 0:
                with contextlib.suppress(TimeoutError):
                    # Spread, so that a fleet that fell together is not asked in lockstep.
                    async with asyncio.timeout(wait * random.uniform(1.0, 1.2)):
                        await engine.wake.wait()
                        engine.wake.clear()

    def _next_look(self, engine: WatchedEngine) -> float:
        """When to probe: at its time, and when an ejection is over."""
        due = engine.tracker.next_probe
        if engine.worker_id is not None:
            now = self._clock.now()
            until = self.reports.outliers.ejected_until(engine.worker_id, now)
            if until > now:
                due = min(due, until)
        return due

    async def _probe(self, engine: WatchedEngine, *, describe: bool) -> None:
        timeout = self._policy.probe_timeout_s
        ready = engine.tracker.state is WorkerState.READY
        try:
            identity = await engine.client.check_health(timeout=timeout)
            changed = self._has_changed(engine, identity)
            if describe or changed or not ready:
                try:
                    said, facts = await engine.client.describe(timeout=timeout)
                except grpc.RpcError as error:
                    # It is well, as it says itself; what it was known for still holds.
                    if not ready or changed or engine.client.origin_of(error) is not Origin.ENGINE:
                        raise
                    engine.tracker.on_probe_ok(self._clock.now())
                else:
                    self._admit(engine, identity.or_else(said), facts)
            else:
                engine.tracker.on_probe_ok(self._clock.now())
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {shortened(error.details() or '')}"
            engine.tracker.on_probe_failed(self._clock.now(), reason)
        except WorkerError as error:
            engine.tracker.on_probe_failed(self._clock.now(), shortened(str(error)))
        self._publish(engine)

    def _has_changed(self, engine: WatchedEngine, identity: EngineIdentity) -> bool:
        """Whether an engine says that it is another one than we know, or has other ranks."""
        entry = None if engine.worker_id is None else self._registry.entry(engine.worker_id)
        return entry is None or not identity.fits(entry)

    def _admit(self, engine: WatchedEngine, identity: EngineIdentity, facts: EngineFacts) -> None:
        """An engine answered: take it in, or refuse it."""
        now = self._clock.now()
        engine.facts = facts
        their_size = facts.settings.get("kv_block_size", self._block_size)
        if their_size != self._block_size:
            reason = f"its KV block size is {their_size}, the router's is {self._block_size}"
            engine.tracker.on_refused(now, reason)
            return
        dp_size = engine.url.dp_size if identity.dp_size is None else identity.dp_size
        if len(identity.publisher_ids or ()) not in (0, dp_size):
            count = len(identity.publisher_ids or ())
            reason = f"it announces {count} publishers of KV events for {dp_size} ranks"
            engine.tracker.on_refused(now, reason)
            return
        model = self._usual_model(engine)
        if not self._mixed_models and facts.model_id and facts.model_id != model:
            engine.tracker.on_refused(now, f"its model is {facts.model_id!r}, others' {model!r}")
            return
        holder = self._claim(engine, identity, engine.tracker.state)
        if holder is not engine:
            reason = f"its worker id {identity.worker_id} is held by {holder.url.address}"
            engine.tracker.on_refused(now, reason)
            return
        engine.tracker.on_probe_ok(now)

    def _usual_model(self, newcomer: WatchedEngine) -> str:
        """The model of most engines that answer; of those there are as many of, one that is served.

        The first engines of a fleet may be the odd ones: the others correct that as they come.
        """
        votes: Counter[str] = Counter()
        for engine in self._engines.values():
            if engine.facts.model_id and (engine is newcomer or not engine.tracker.failed_probes):
                # A tie is for what is served now.
                votes[engine.facts.model_id] += 2 + engine.is_ready
        most = max(votes.values(), default=0)
        return next((model for model, count in votes.items() if count == most), "")

    def _claim(
        self, engine: WatchedEngine, identity: EngineIdentity, state: WorkerState
    ) -> WatchedEngine:
        """Register an engine under its id, unless another one holds that; return who holds it."""
        worker_id = engine.url.default_id if identity.worker_id is None else identity.worker_id
        holder = self._holders.get(worker_id, engine)
        if holder is not engine:
            if holder.tracker.failed_probes < PROBES_TO_LOSE_ID:
                return holder
            self._evict(holder, engine)
        self._holders[worker_id] = engine
        if engine.worker_id not in (None, worker_id):
            log.info("worker has a new id", address=engine.url.address, worker_id=worker_id)
            self._release(engine)
        engine.worker_id = worker_id
        self._registry.add(
            worker_id,
            dp_size=engine.url.dp_size if identity.dp_size is None else identity.dp_size,
            dp_start=engine.url.dp_start,
            address=engine.url.address,
            total_kv_blocks=engine.facts.settings.get("total_kv_blocks"),
            max_num_batched_tokens=engine.facts.settings.get("max_num_batched_tokens"),
            publisher_ids=identity.publisher_ids or (),
            state=state,
        )
        return engine

    def _evict(self, holder: WatchedEngine, successor: WatchedEngine) -> None:
        """Take the id of an engine that is gone: it is registered by its address again."""
        log.warning(
            "worker id taken over",
            worker_id=holder.worker_id,
            address=successor.url.address,
            held_by=holder.url.address,
        )
        self._release(holder)
        default = holder.url.default_id
        if default not in self._holders:
            self._claim(holder, EngineIdentity(worker_id=default), holder.tracker.state)

    def _release(self, engine: WatchedEngine) -> None:
        if engine.worker_id is not None:
            del self._holders[engine.worker_id]
            self._registry.remove(engine.worker_id)
            self.reports.forget(engine.worker_id)
            engine.worker_id, engine.alive = None, None

    def _inhibited_until(self, worker_id: int, engine: WatchedEngine) -> float:
        out = self.reports.outliers.out_until(worker_id, self._clock.now())
        return max(engine.tracker.inhibited_until, out)

    def _publish(self, engine: WatchedEngine) -> None:
        """Bring the registry up to date with what probes and requests say of an engine."""
        tracker, worker_id = engine.tracker, engine.worker_id
        entry = self._registry.entry(worker_id) if worker_id is not None else None
        state, reason = tracker.state, tracker.reason
        alive_changed = False
        if worker_id is not None and entry is not None:
            now = self._clock.now()
            alive = tracker.state is WorkerState.READY and tracker.inhibited_until <= now
            alive_changed = engine.alive is not alive
            if alive_changed:
                engine.alive = alive
                self.reports.set_alive(worker_id, alive)
            engine.ejected = self.reports.outliers.ejected_until(worker_id, now) > now
            if state is WorkerState.READY and engine.ejected:
                state, reason = WorkerState.UNHEALTHY, self.reports.outliers.reason(worker_id)
            if (entry.state, entry.reason) != (state, reason):
                self._registry.set_state(worker_id, state, reason)
            until = self._inhibited_until(worker_id, engine)
            if entry.inhibited_until != until:
                self._registry.inhibit(worker_id, until)
        before, engine.published = engine.published, (state, reason, engine.facts)
        if engine.published != before:
            if before is None or before[0] is not state or not before[1]:
                event = log.info if state is WorkerState.READY else log.warning
                said = {"reason": reason} if reason else {}
                address = engine.url.address
                event(f"worker {state.value}", address=address, worker_id=worker_id, **said)
            self._changed()
            was_ready = before is not None and before[0] is WorkerState.READY
            if was_ready and state is not WorkerState.READY and worker_id is not None:
                for hear in self.on_down:
                    hear(worker_id)
        if alive_changed:
            self._publish_troubled(engine)

    def _changed(self) -> None:
        # Made when asked for: a large fleet changes often while it starts.
        self._facts = self._limits = None
        for listener in self.listeners:
            listener()
