"""The health monitor: learns who each configured engine is, and keeps the registry right about it.

One task per engine probes it; requests report what they met. Routing never waits for either:
it reads the registry. Judgement is in health_tracker.py and outliers.py.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable
from functools import cached_property, partial

import structlog

from ..base.clock import STALLED_S, Clock
from ..base.errors import ConfigError, StatusCode, WorkerError
from ..process.supervised import supervise
from ..transport.security import ClientTls, EngineKey, WorkerTlsConfig
from .channels import ConnectionPolicy
from .dialects import EngineClient
from .engine_check import usual_model, why_refused
from .engine_facts import EngineFacts, merge_facts
from .engine_table import EngineTable, WatchedEngine
from .failures import EngineCallError, Origin, shortened
from .health_tracker import HealthPolicy, HealthTracker
from .outliers import OutlierPolicy
from .prompt_limits import PromptLimits
from .registry import WorkerRegistry, WorkerState, check_weight
from .request_reports import RequestReports
from .trtllm_client import EngineIdentity, TrtllmClient
from .worker_url import OPENAI, WorkerUrl, parse_worker_url

PROBES_PER_DESCRIPTION = 12
"""An engine that is well is asked for its facts again with one in this many probes."""

FIRST_PROBES_AT_ONCE = 64
"""First probes at the same time. All of a large fleet at once would only wait for one another."""

SUSPECTED_AGAIN_S = 1.0
"""Least time between two probes of an engine that is silent."""

log = structlog.get_logger(__name__)


class HealthMonitor:
    """The engines given by address, from `add` until `remove` or `close`.

    Each is registered at once, CONNECTING, under the id of its URL or a hash of its address, and
    again under the id it announces. REFUSED is an engine with another block size, one of another
    model than most, unless `mixed_models`, and one whose id a live engine of another address has.
    `reports` takes the outcomes of requests. `listeners` are called after any change, `on_down`
    with the id of a worker that was well and is so no more; one that drains may be well.
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
        key: EngineKey | None = None,
    ) -> None:
        """`tls` is for engines at grpcs:// addresses; None: the system's authorities. `key`: shown
        to engines that speak OpenAI's HTTP."""
        self._registry = registry
        self._clock = clock
        self._block_size = block_size
        self._policy = policy or HealthPolicy()
        self._connection = connection or ConnectionPolicy()
        self._mixed_models = mixed_models
        self._first_probes = asyncio.Semaphore(FIRST_PROBES_AT_ONCE)
        self._tls, self._key = tls, key
        self.reports = RequestReports(
            clock, outliers, on_changed=self._on_reported, on_lost=self._on_lost
        )
        self._engines = EngineTable(registry, self.reports.forget)
        self.listeners: list[Callable[[], None]] = []
        self.on_down: list[Callable[[int], None]] = []

    def add(
        self,
        url: str | WorkerUrl,
        *,
        weight: float | None = None,
        client: EngineClient | None = None,
        origin: str = "static",
    ) -> None:
        """Watch one more engine; ConfigError if the URL is none, or known already.

        A `weight` goes before that of the URL. `client`, which is closed with the watch: how it is
        called, if not as its URL says. `origin` says where we have it from.
        """
        parsed = parse_worker_url(url) if isinstance(url, str) else url
        if self._engines.at(parsed.address) is not None:
            raise ConfigError(f"worker {parsed.address} is given twice", key="workers")
        tracker = HealthTracker(self._policy, self._clock.now())
        engine = WatchedEngine(parsed, tracker, client or self._client_at(parsed), origin)
        if weight is not None:
            engine.weight = weight
        self._engines.add(engine)
        self._engines.claim(engine, EngineIdentity())
        engine.task = supervise(f"health-{parsed.address}", partial(self._watch, engine))

    def _client_at(self, url: WorkerUrl) -> EngineClient:
        if url.tls and self._tls is None:
            self._tls = ClientTls(WorkerTlsConfig())
        tls = self._tls if url.tls else None
        if url.dialect == OPENAI:
            from .dialects import OpenAiClient  # and the HTTP client with it

            return OpenAiClient(
                url.address,
                self._connection,
                tls,
                url.tls_name,
                block_size=self._block_size,
                key=self._key,
                transfer=url.transfer,
                parallel=url.parallel,
            )
        return TrtllmClient(url.address, self._connection, tls, url.tls_name)

    def set_policy(self, policy: HealthPolicy) -> None:
        """Probe by this policy from the next probe of each engine on."""
        self._policy = policy
        for engine in self._engines.watched:
            engine.tracker.policy = policy

    def find(self, address: str) -> WatchedEngine | None:
        """The engine at an address, as its URL has it: HOST:PORT."""
        return self._engines.at(address)

    @property
    def engines(self) -> Iterable[WatchedEngine]:
        """All that are watched."""
        return self._engines.watched

    def engine(self, worker_id: int) -> WatchedEngine | None:
        """The engine that is registered under this id."""
        return self._engines.by_id.get(worker_id)

    async def remove(self, url: str) -> bool:
        """Stop watching the engine at a URL or address, and forget its worker; what still runs
        there is cut off. False if none is watched there.
        """
        engine = self._engines.at(url) or self._engines.at(parse_worker_url(url).address)
        if engine is None:
            return False
        self._engines.remove(engine)  # before anything else can be sent there
        self._changed()
        await engine.close()
        return True

    def drain(self, engine: WatchedEngine, draining: bool = True) -> None:
        """Send an engine no new requests; those that it has go on. `False` ends that."""
        if engine.draining is not draining:
            engine.draining = draining
            self._publish(engine)

    def set_weight(self, engine: WatchedEngine, weight: float) -> None:
        """Give an engine's worker another weight; ValueError if it is none."""
        engine.weight = check_weight(weight)
        if engine.worker_id is not None:
            self._registry.set_weight(engine.worker_id, weight)
        self._changed()

    def client(self, worker_id: int) -> EngineClient | None:
        """The way to a worker's engine; None if it is not one that we were given the address of."""
        engine = self._engines.by_id.get(worker_id)
        return engine.client if engine is not None else None

    def url(self, worker_id: int) -> WorkerUrl | None:
        """What we were given of a worker; None if its address was not."""
        engine = self._engines.by_id.get(worker_id)
        return engine.url if engine is not None else None

    # Known until something changes: see `_changed`.

    @cached_property
    def facts(self) -> EngineFacts:
        """Of the engines that take requests, as if they were one."""
        ready = (e for e in self._engines.by_id.values() if e.takes_requests)
        return merge_facts(engine.facts for engine in ready)

    @cached_property
    def limits(self) -> PromptLimits:
        """What prompts each engine can take, of those that were admitted."""
        return PromptLimits(
            {
                worker_id: engine.facts
                for worker_id, engine in self._engines.by_id.items()
                if engine.tracker.state is not WorkerState.REFUSED
            }
        )

    @cached_property
    def any_ready(self) -> bool:
        """Whether a worker takes requests."""
        return any(engine.takes_requests for engine in self._engines.by_id.values())

    def is_ready(self, worker_id: int) -> bool:
        """Whether a worker answers its probes and is not ejected."""
        engine = self._engines.by_id.get(worker_id)
        return engine is not None and engine.is_ready

    def ready_clients(self) -> list[EngineClient]:
        """The ways to those that take requests."""
        return [engine.client for engine in self._engines.by_id.values() if engine.takes_requests]

    def ready_workers(self) -> list[tuple[int, EngineClient]]:
        """(worker id, way to it) of those that may be given a request."""
        now = self._clock.now()
        ready = [(w, engine) for w, engine in self._engines.by_id.items() if engine.takes_requests]
        usable = [(w, e) for w, e in ready if self._inhibited_until(w, e) <= now]
        return [(w, engine.client) for w, engine in usable or ready]

    def suspect(self, worker_id: int, silent_s: float = 0.0) -> None:
        """A worker has sent nothing of its answers for `silent_s`, or may be another one: probe
        it, now and then."""
        engine, now = self._engines.by_id.get(worker_id), self._clock.now()
        if engine is None:
            return
        pause = min(max(SUSPECTED_AGAIN_S, silent_s / 2), self._policy.probe_interval_s)
        if not engine.probing and now - engine.probed_at >= pause:
            engine.tracker.on_suspicion(now)
            engine.wake.set()

    async def close(self) -> None:
        """Stop all probes and close all channels."""
        await asyncio.gather(*(engine.close() for engine in self._engines.clear()))

    def _on_lost(self, worker_id: int) -> None:
        """The connection to this worker broke under a request."""
        engine = self._engines.by_id.get(worker_id)
        if engine is None:
            return
        # Requests alone never take the last ready engine away. Only a failed probe may.
        others = any(other.alive for other in self._engines.by_id.values() if other is not engine)
        engine.tracker.on_connection_lost(self._clock.now(), may_inhibit=others)
        self._publish(engine)
        engine.wake.set()

    def _on_reported(self, worker_id: int) -> None:
        """Requests have changed who is out."""
        engine = self._engines.by_id.get(worker_id)
        if engine is not None:
            self._publish(engine)
            engine.wake.set()

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
                engine.tracker.on_probe_void(self._clock.now(), "internal error")
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
            until = self.reports.outliers.standing(engine.worker_id, now).ejected_until
            if until > now:
                due = min(due, until)
        return due

    async def _probe(self, engine: WatchedEngine, *, describe: bool) -> None:
        timeout = self._policy.probe_timeout_s
        ready = engine.tracker.state is WorkerState.READY
        sent_at = self._clock.now()
        try:
            identity = await self._identify(engine, timeout)
            changed = self._has_changed(engine, identity)
            if describe or changed or not ready:
                sent_at = self._clock.now()
                try:
                    reported, facts = await engine.client.describe(timeout=timeout)
                except EngineCallError as error:
                    # It is well, as it says itself; what it was known for still holds.
                    if not ready or changed or error.origin is not Origin.ENGINE:
                        raise
                    engine.tracker.on_probe_ok(self._clock.now())
                else:
                    self._admit(engine, identity.or_else(reported), facts)
            else:
                engine.tracker.on_probe_ok(self._clock.now())
        except EngineCallError as error:
            reason = f"{error.code().name}: {shortened(error.details())}"
            ours = error.origin is Origin.ROUTER
            self._on_failed_probe(engine, sent_at, reason, ours=ours)
        except WorkerError as error:
            self._on_failed_probe(engine, sent_at, shortened(str(error)))
        self._publish(engine)

    async def _identify(self, engine: WatchedEngine, timeout: float) -> EngineIdentity:
        """Ask an engine whether it is well. One over gRPC with another service than its client's
        gets a client of that."""
        client, url = engine.client, engine.url
        try:
            return await client.check_health(timeout=timeout)
        except EngineCallError as error:
            if error.code() is not StatusCode.UNIMPLEMENTED or not isinstance(client, TrtllmClient):
                raise
            from .token_services import find_service  # and the messages of the others

            tls = self._tls if url.tls else None
            found = await find_service(
                url, type(client), self._connection, tls, self._block_size, timeout=timeout
            )
            if found is None:
                raise
        engine.client, identity = found
        log.info("worker has another service", address=url.address, dialect=engine.client.dialect)
        await client.close()
        return identity

    def _on_failed_probe(
        self, engine: WatchedEngine, sent_at: float, reason: str, *, ours: bool = False
    ) -> None:
        """What took longer than its time-out allows was held up here, whatever it failed of: each
        client has its own word for a time-out. `ours`: it failed by a fault of this process."""
        now, tracker = self._clock.now(), engine.tracker
        void = ours or now - sent_at > self._policy.probe_timeout_s + STALLED_S
        (tracker.on_probe_void if void else tracker.on_probe_failed)(now, reason)

    def _has_changed(self, engine: WatchedEngine, identity: EngineIdentity) -> bool:
        """Whether an engine says that it is another one than we know, or has other ranks."""
        entry = None if engine.worker_id is None else self._registry.entry(engine.worker_id)
        return entry is None or not identity.fits(entry)

    def _admit(self, engine: WatchedEngine, identity: EngineIdentity, facts: EngineFacts) -> None:
        """An engine answered: take it in, or refuse it."""
        now = self._clock.now()
        engine.facts = facts
        dp_size = engine.url.dp_size if identity.dp_size is None else identity.dp_size
        usual = "" if self._mixed_models else usual_model(self._engines.watched, engine)
        reason = why_refused(
            engine, identity, facts, dp_size=dp_size, block_size=self._block_size, model=usual
        )
        if reason is None:
            holder = self._engines.claim(engine, identity)
            if holder is engine:
                engine.tracker.on_probe_ok(now)
                return
            reason = f"its worker id {identity.worker_id} is held by {holder.url.address}"
        engine.tracker.on_refused(now, reason)

    def _inhibited_until(self, worker_id: int, engine: WatchedEngine) -> float:
        out = self.reports.outliers.standing(worker_id, self._clock.now()).out_until
        return max(engine.tracker.inhibited_until, out)

    def _publish(self, engine: WatchedEngine) -> None:
        """Bring the registry up to date with what probes and requests say of an engine."""
        tracker, worker_id = engine.tracker, engine.worker_id
        entry = self._registry.entry(worker_id) if worker_id is not None else None
        state, reason = engine.state, tracker.reason
        if worker_id is not None and entry is not None:
            now = self._clock.now()
            alive = state is WorkerState.READY and tracker.inhibited_until <= now
            if engine.alive is not alive:
                engine.alive = alive
                self.reports.set_alive(worker_id, alive)
            standing = self.reports.outliers.standing(worker_id, now)
            engine.ejected = bool(standing.ejected_for)
            if state is WorkerState.READY and engine.ejected:
                state, reason = WorkerState.UNHEALTHY, standing.ejected_for
            if (entry.state, entry.reason) != (state, reason):
                self._registry.set_state(worker_id, state, reason)
            until = max(tracker.inhibited_until, standing.out_until)
            if entry.inhibited_until != until:
                self._registry.inhibit(worker_id, until)
        before, engine.published = engine.published, (state, reason, engine.facts)
        if engine.published != before:
            if before is None or before[0] is not state or not before[1]:
                well = state in (WorkerState.READY, WorkerState.DRAINING)
                event = log.info if well else log.warning
                fields = {"reason": reason} if reason else {}
                address = engine.url.address
                event(f"worker {state.value}", address=address, worker_id=worker_id, **fields)
            self._changed()
        was_ready, engine.was_ready = engine.was_ready, engine.is_ready
        if was_ready and not engine.is_ready and worker_id is not None:
            for listener in self.on_down:
                listener(worker_id)

    def _changed(self) -> None:
        # Made when asked for: a large fleet changes often while it starts.
        for known in "facts", "limits", "any_ready":
            self.__dict__.pop(known, None)
        for listener in self.listeners:
            listener()
