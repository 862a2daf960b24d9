"""ModelPool: one set of workers of a model, with index, slots and text that are its own."""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import structlog

from ...base.backoff import Backoff
from ...base.errors import ConfigError, NoWorkersError
from ...base.identity import WorkerWithDpRank
from ...indexer.event_index import EventIndex
from ...kv_events import StateReset, WorkerQueries
from ...process.supervised import stopped, supervise
from ...router.prompt import Prompt
from ...runtime.request_planes import RequestClient
from ...server.admin import DiscoveredWorkers
from ...server.config import ServeConfig
from ...server.dashboard import PageData
from ...server.pool import WorkerPool
from ...server.server_parts import ServerParts
from ...transport.http1 import Handler
from ...workers.records import (
    DECODE,
    PREFILL,
    CardFile,
    PublisherRecord,
    WrongFileError,
    adapter_id,
    checked_folder,
)
from ..completions import Completions
from ..config import FrontendConfig
from ..parsers import ModelParsers
from ..processor import ModelText, PieceCache
from .routes import in_order
from .set_members import SetMembers
from .worker_sets import SetName, WorkerSet

POOL_ID_LENGTH = 16
"""Characters of a card's checksum by which frontends know a pool of an endpoint from its others."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Shared:
    """What the pools of one frontend have in common."""

    parts: ServerParts
    settings: Callable[[], ServeConfig]
    """what a pool that is built now begins with"""
    frontend: FrontendConfig
    plane: RequestClient
    """over which Dynamo's workers are called; its owner's to close"""
    store: str
    """the name of the store that workers are found in"""
    pieces: PieceCache
    """of all texts"""
    texts: WeakValueDictionary[tuple[CardFile, ...], ModelText] = field(
        default_factory=WeakValueDictionary
    )
    """of the pools that there are, by what their cards say of their files"""
    reset: StateReset = field(default_factory=StateReset)
    on_ready_changed: list[Callable[[], None]] = field(default_factory=list)
    """called when a worker of any pool begins or ceases to take requests"""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """of a text: one at a time"""


class ModelPool:
    """Requests of one model are routed among the workers of one set, and never leave it.

    From `start`; `is_built` once the files of its card were checked and read, which is tried again
    while that fails: `reason` has why. `close` ends all of it.
    """

    def __init__(self, found: WorkerSet, shared: Shared) -> None:
        self.found = found
        self._shared = shared
        self._rng = random.Random()
        self._members = SetMembers(frozenset(shared.plane.transports))
        self._task: asyncio.Task[None] | None = None
        self._workers: WorkerPool | None = None
        self._discovered: DiscoveredWorkers | None = None
        self._text: ModelText | None = None
        self._completions: Completions | None = None
        self._adapters: dict[str, Completions] = {}
        self._page_data: PageData | None = None
        self._tried = asyncio.Event()  # to build it, and it was built or is refused
        self._serves = False
        self._failure = ""  # why it cannot be built
        self._refuses = ""  # what of its requests, as it was logged last
        self.gone = False
        """no worker is registered for it any more"""
        self.partners: Sequence[ModelPool] = ()
        """of a pool of decode workers: those whose workers may compute its prompts"""

    @property
    def name(self) -> SetName:
        return self.found.name

    @property
    def is_built(self) -> bool:
        return self._serves

    @property
    def answers(self) -> bool:
        """Whether clients' requests go to it; those of prefill workers come from other pools."""
        return self.found.card.worker_type != PREFILL

    @property
    def share(self) -> float:
        """Of its model's requests: as many parts as it has workers that take requests, and none
        without the prefill workers that they need."""
        if self._workers is None or (
            self.found.needs_prefill and not self._able() and self._wants_pairs
        ):
            return 0.0
        return float(len(self._workers.monitor.ready_clients()))

    @property
    def refused_partners(self) -> dict[str, str]:
        """Partners whose workers hand nothing over to these, by label, with the reason."""
        if self._workers is None:
            return {}
        handoffs = self._workers.handoffs
        known = ((each.label, each._workers) for each in self.partners)
        found = {label: handoffs.refusal(pool) for label, pool in known if pool is not None}
        return {label: reason for label, reason in found.items() if reason}

    @property
    def _wants_pairs(self) -> bool:
        return self._shared.settings().disagg.disagg != "off"

    @property
    def state(self) -> str:
        """serving, down (no worker takes its requests), draining, refused or starting."""
        if self.is_built:
            if self.gone:
                return "draining"
            return "serving" if self.share > 0 else "down"
        return "refused" if self._failure else "starting"

    @property
    def reason(self) -> str:
        """Why it does not serve, or what it refuses though it serves."""
        return self._failure or ("" if self._completions is None else self._parsers.reason)

    @property
    def token_cache(self) -> str:
        """on, or why its prompts' token ids are not kept; empty before it is built, and where it
        has no text."""
        return "" if self._text is None else self._text.token_cache

    @property
    def long_chats(self) -> str:
        """on, or why turns of its long chats go on from nothing that is kept; empty as above."""
        return "" if self._text is None else self._text.long_chats

    @property
    def states(self) -> dict[str, int]:
        """How many workers are in each state."""
        return {} if self._workers is None else self._workers.states

    @property
    def refused(self) -> dict[int, str]:
        """Workers that are not as their card says, by id, with the reason."""
        if self._workers is None:
            return {}
        found = {}
        for entry in self._workers.router.registry.entries():
            if entry.state.value == "refused":
                engine = self._workers.monitor.engine(entry.worker_id)
                found[entry.worker_id] = "" if engine is None else engine.tracker.reason
        return found

    @property
    def workers(self) -> WorkerPool | None:
        """What requests are routed among, and all that does so; None before it is built."""
        return self._workers

    @property
    def text(self) -> ModelText | None:
        """How its prompts are tokenized; None before it is built, and where clients' requests do
        not go to it."""
        return self._text

    @property
    def label(self) -> str:
        """Which of its model's pools it is, in few characters: its endpoint and card."""
        return f"{self.name.endpoint}/{self.name.checksum[:8]}"

    @property
    def page_data(self) -> PageData | None:
        """What its dashboard shows; None before it is built."""
        return self._page_data if self.is_built else None

    @property
    def summary(self) -> dict[str, Any]:
        """Its line in the dashboard's list of pools."""
        return {
            "key": f"{self.name.model} {self.label}",
            "model": self.name.model,
            "endpoint": str(self.name.endpoint),
            "card": self.name.checksum[:8],
            "block_size": self.found.card.block_size,
            "state": self.state,
            "reason": self.reason,
            "share": self.share,
            "workers": sum(self.states.values()),
            "in_flight": self.in_flight,
        }

    @property
    def in_flight(self) -> int:
        return 0 if self._workers is None else self._workers.in_flight

    @property
    def context_limit(self) -> int:
        """Most tokens of prompt and answer together; 0 where unknown."""
        known = 0 if self._completions is None else self._completions.context_limit
        return known or self.found.card.context_length

    @property
    def is_idle(self) -> bool:
        """Whether no worker is left to wait for."""
        if self._workers is None:
            return True
        return not self._workers.states and not self._workers.in_flight

    @property
    def model(self) -> str:
        return self.name.model

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """How requests of its model are answered, by route; none before it is built."""
        return {} if self._completions is None else self._completions.routes

    @property
    def has_queue(self) -> bool:
        """Whether requests can wait here, as far as it is known yet."""
        return self._workers is None or self._workers.has_queue

    def change(self, new: ServeConfig, keys: frozenset[str]) -> None:
        """Use the server's settings of these keys from now on."""
        if self._workers is not None:
            self._workers.change(_config_of(new, self.found), keys)

    def _partner(self, prompt: Prompt) -> WorkerPool | None:
        """Whose workers may compute a prompt; None: only those that answer.

        NoWorkersError if these cannot do without others, and there are none."""
        for pool in in_order(self._able(prompt.lora_name), self._rng)[:1]:
            return pool._workers
        if self.found.needs_prefill:
            raise NoWorkersError(f"the model {self.name.model} has no prefill worker that is ready")
        return None

    def _able(self, adapter: str | None = None) -> "list[ModelPool]":
        """The partners that have workers, and the adapter of this number if there is one."""
        return [
            pool
            for pool in self.partners
            if pool.is_built and pool.share > 0 and (adapter is None or pool.has_adapter(adapter))
        ]

    def has_adapter(self, number: str) -> bool:
        """Whether its workers have the adapter that engines know by this number."""
        return any(str(adapter_id(name)) == number for name in self.found.adapters)

    def has_worker(self, worker_id: int) -> bool:
        return self._workers is not None and self._workers.has_worker(worker_id)

    def start(self) -> None:
        """Begin to build it."""
        self._task = supervise(f"pool-{self.name}", self._build)

    def become(
        self,
        found: WorkerSet | None,
        sources: Mapping[WorkerWithDpRank, PublisherRecord],
        elsewhere: Collection[int],
    ) -> None:
        """The workers registered for it now; None: none any more. `elsewhere`: for other pools."""
        self.gone = found is None
        if found is not None:
            self.found = found
        self._members.become(found, sources, elsewhere)
        if self.is_built:
            self._log_refusals()

    @property
    def _parsers(self) -> ModelParsers:
        return self._shared.frontend.parsers(self.found.card)

    def _log_refusals(self) -> None:
        refuses = self._parsers.reason if self.answers else ""
        if refuses != self._refuses:
            if refuses:
                log.warning("a pool refuses requests", pool=str(self.name), reason=refuses)
            else:
                log.info("a pool takes all requests again", pool=str(self.name))
        self._refuses = refuses

    async def wait_for_probes(self, at_most_s: float) -> None:
        """Wait until it is built and each worker was asked once, at most so long."""
        async with asyncio.timeout(at_most_s):
            await self._tried.wait()
            if self._workers is not None:
                await self._workers.wait_for_probes(at_most_s)

    async def close(self) -> None:
        """End all of it. Idempotent."""
        await stopped(self._task)
        await self._close_parts()

    async def _close_parts(self) -> None:
        if self._discovered is not None:
            await self._discovered.close()
        if self._workers is not None:
            await self._workers.close()

    async def _build(self) -> None:
        if self._serves:
            return
        text = await self._read_text() if self.answers else None
        shared, card = self._shared, self.found.card
        parts, config = shared.parts, _config_of(shared.settings(), self.found)
        await self._close_parts()  # of an attempt that failed
        workers = WorkerPool(
            config,
            parts.security,
            parts.clock,
            parts.tracing,
            parts.off_loop,
            pool=self.name.checksum[:POOL_ID_LENGTH],
            elsewhere=lambda: self._members.elsewhere,
            reset=shared.reset,
            tokenize=None if text is None else partial(text.encode, add_special_tokens=True),
            prefill=self._partner if card.worker_type == DECODE else None,
            recorder=parts.recorder if self.answers else None,
            model=self.name.model,
        )
        self._workers = workers
        await workers.start_events(self._ask_about)
        await workers.start_replicas()
        self._discovered = DiscoveredWorkers(
            shared.store, self._members, workers.admin, workers.monitor, shared.plane, parts.clock
        )
        await self._discovered.start()
        workers.dispatcher.start()
        self._page_data = PageData(
            workers.dashboard, workers.reader, lambda: (self.share > 0, workers.health)
        )
        if text is not None:
            self._text = text
            self._completions = self._answering(self.name.model)
        self._serves, self._failure = True, ""
        self._tried.set()
        workers.monitor.listeners.append(self._on_ready_changed)
        self._on_ready_changed()
        log.info("a pool serves", pool=str(self.name), block_size=card.block_size)
        self._log_refusals()

    def _on_ready_changed(self) -> None:
        for on_changed in self._shared.on_ready_changed:
            on_changed()

    def adapter(self, name: str) -> "AdapterPool":
        """One of its adapters, as a model. The pool must be built."""
        if name not in self._adapters:
            self._adapters[name] = self._answering(name, adapter=True)
        return AdapterPool(self, name, self._adapters[name].routes)

    def _answering(self, name: str, *, adapter: bool = False) -> Completions:
        workers, text, shared = self._workers, self._text, self._shared
        assert workers is not None and text is not None
        return Completions(
            workers.dispatcher,
            workers.monitor,
            workers.dispatcher.reader,
            text,
            shared.frontend,
            name,
            adapter_id(name) if adapter else None,
            card=lambda: self.found.card,
            calls=shared.parts.calls,
        )

    async def _read_text(self) -> ModelText:
        """The model's text, once its files are as the card says."""
        shared = self._shared
        given = shared.frontend.model_path
        other = None if given is None else Path(given)
        pauses = Backoff(1.0, 30.0)
        while True:
            try:
                files = self.found.card.files
                folder = await asyncio.to_thread(checked_folder, files, other)
                async with shared.reading:
                    return await self._text_in(folder, _same_files(files))
            except (WrongFileError, ConfigError) as error:
                if self._failure != str(error):
                    self._failure = str(error)
                    self._tried.set()
                    log.warning("a pool cannot serve", pool=str(self.name), error=self._failure)
                await asyncio.sleep(pauses.next())

    async def _text_in(self, folder: Path, known: tuple[CardFile, ...]) -> ModelText:
        """Another pool's, if it has the same files: all threads stand still while a large tokenizer
        is read."""
        shared = self._shared
        text = shared.texts.get(known) if known else None
        if text is None:
            text = await asyncio.to_thread(ModelText, folder, shared.parts.off_loop, shared.pieces)
            if known:
                shared.texts[known] = text
        return text

    def _ask_about(self, index: EventIndex) -> WorkerQueries:
        return WorkerQueries(index, self._shared.plane, lambda: self._members.sources)


class AdapterPool(NamedTuple):
    """A LoRA adapter that a pool's workers have: their requests with it."""

    pool: ModelPool
    model: str
    handlers: Mapping[str, Handler]

    @property
    def number(self) -> str:
        """As engines, and events of their caches, know it."""
        return str(adapter_id(self.model))

    @property
    def share(self) -> float:
        return self.pool.share

    def has_worker(self, worker_id: int) -> bool:
        return self.pool.has_worker(worker_id)


def _same_files(files: tuple[CardFile, ...]) -> tuple[CardFile, ...]:
    """The files wherever they stand; none if one of them has no checksum to know it by."""
    if not all(file.checksum for file in files):
        return ()
    return tuple(replace(file, path=Path(file.path).name) for file in files)


def _config_of(config: ServeConfig, found: WorkerSet) -> ServeConfig:
    """The configuration of one pool: the frontend's, for the workers of one set."""
    values = {field.name: getattr(config, field.name) for field in fields(ServeConfig)}
    endpoint = found.name.endpoint
    values |= {
        "router": replace(config.router, block_size=found.card.block_size),
        "namespace": endpoint.namespace,
        "component": endpoint.component,
        "endpoint": endpoint.endpoint,
    }
    return ServeConfig(**values)
