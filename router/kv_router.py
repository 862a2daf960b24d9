"""KvRouter: finds the best worker for a prompt, and keeps count of what it sent where.

The library's front: used by the service, by embedding frontends and by simulations. Synchronous,
without I/O, safe to call from several threads. The one place where load is booked and released.
"""

import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..indexer.actor import EventIndex
from ..indexer.approximate import ApproximateIndex
from ..indexer.hashing import BlockMmInfos, Integers, sequence_hashes
from ..indexer.prefix_index import PrefixIndex, TierOverlap
from ..indexer.source import SourceState
from ..runtime.clock import Clock, SystemClock
from ..runtime.errors import ConfigError, InvalidRequestError
from ..runtime.identity import WorkerWithDpRank, as_worker
from ..slots.table import SlotTable
from ..workers.registry import WorkerEntry, WorkerRegistry
from .config import DYNAMO, KvRouterConfig
from .cost import Mask, lower_saving, terms
from .decision import Decision, Explanation
from .limits import LoadLimits
from .overlaps import Overlaps
from .policies import GuardedStrategy, guarded, new_strategy
from .prompt import Content, Prompt, hash_prompt, prompt_length
from .selection import Candidates, Observer, Strategy, choose, pick
from .views import PotentialLoad, WorkerView, worker_views

WorkerLike = int | tuple[int, int]
T = TypeVar("T")
_UNASKED = Overlaps(0)
_DYNAMO = replace(KvRouterConfig(), policy=DYNAMO)


class KvRouter:
    """Routes prompts to workers by their caches and their load.

    `registry` may be shared with whoever discovers workers; `clock` and `seed` make a run
    repeatable; a `strategy` decides in place of the mode's. Close it when done: the event index
    has a thread.
    """

    def __init__(
        self,
        config: KvRouterConfig | None = None,
        *,
        registry: WorkerRegistry | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        self.config = config or KvRouterConfig()
        self.registry = registry if registry is not None else WorkerRegistry()
        self.block_size = self.config.block_size
        self.index: PrefixIndex = _index_of(self.config)
        self._clock = clock or SystemClock()
        self._rng = random.Random(self.config.seed if seed is None else seed)
        self._slots = SlotTable(self.block_size, expiry_s=self.config.active_request_expiry_secs)
        self.limits = LoadLimits(self.config.admission, self._slots, self.registry)
        if strategy is not None:
            strategy = guarded(strategy, "the strategy that was passed in", self.config)
        self._strategy = strategy or new_strategy(self.config)
        self._observer: Observer | None = self._strategy.observer
        self._overlaps = Overlaps(0)
        self._dropped: list[str] = []
        self._lock = threading.RLock()
        self.registry.on_add.append(self._on_add)
        self.registry.on_remove.append(self._on_remove)
        for number, worker in self.registry.numbered():
            self._on_add(worker, number)
        if self._observer is not None:
            self.registry.on_update.append(self._on_update)
            for entry in self.registry.entries():
                self._on_update(entry)

    @property
    def uses_caches(self) -> bool:
        """Whether decisions look at the workers' caches, and at the slots' blocks, at all."""
        return self._strategy.needs_overlaps

    @property
    def policy_failures(self) -> int:
        """How often a policy that is not ours has raised, or answered nonsense."""
        how = self._strategy
        return how.failures.count if isinstance(how, GuardedStrategy) else 0

    # Workers

    def add_worker(
        self,
        worker_id: int,
        *,
        dp_size: int = 1,
        dp_start: int = 0,
        address: str | None = None,
        total_kv_blocks: int | None = None,
        max_num_batched_tokens: int | None = None,
    ) -> WorkerEntry:
        """Register a worker, ready for requests, or renew what is known of one."""
        with self._lock:
            return self.registry.add(
                worker_id,
                dp_size=dp_size,
                dp_start=dp_start,
                address=address,
                total_kv_blocks=total_kv_blocks,
                max_num_batched_tokens=max_num_batched_tokens,
            )

    def remove_worker(self, worker_id: int) -> list[str]:
        """Forget a worker, its blocks and its bookings; the ids of the requests it had."""
        with self._lock:
            self._dropped = []
            self.registry.remove(worker_id)
            return self._dropped

    def workers(self) -> list[WorkerView]:
        """Every registered rank, then those that only publish events."""
        with self._lock:
            return worker_views(self.registry, self._slots, self.index.sources())

    # Events

    def apply_event(self, event: bytes, worker_id: WorkerLike | None = None) -> None:
        """Take one event in: a message of the event plane, or a JSON cache event of `worker_id`.

        The next decision sees it. Raises EventError if it cannot be decoded or, for a JSON event,
        names unknown blocks; ConfigError if this router predicts caches instead of being told.
        """
        index = self.index
        if not isinstance(index, EventIndex):
            raise ConfigError("use_kv_events: off, so events are not taken", key="use_kv_events")
        if worker_id is None:
            index.apply(event)
        else:
            index.apply_cache_event(as_worker(worker_id), event)

    # Decisions

    def best_worker(
        self, token_ids: Integers, request_id: str | None = None, **how: Any
    ) -> tuple[int, int, int]:
        """(worker_id, dp_rank, overlap in blocks) of the best worker; takes what `decide` takes."""
        decision = self.decide(token_ids, request_id, **how)
        return decision.worker.worker_id, decision.worker.dp_rank, decision.overlap_blocks

    def decide(
        self,
        token_ids: Integers,
        request_id: str | None = None,
        *,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
        block_mm_infos: BlockMmInfos | None = None,
        allowed_workers: Iterable[WorkerLike] | None = None,
        excluded_workers: Collection[WorkerLike] = (),
        pinned_worker: WorkerLike | None = None,
        expected_output_tokens: int | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Decision:
        """Choose a worker, and with a `request_id` book the request on it until `free`.

        `overrides` are KvRouterConfig fields for this request alone. An int in `allowed_workers`
        or `excluded_workers` stands for all ranks of a worker, in `pinned_worker` for rank 0.
        Raises InvalidRequestError for a prompt or an id that cannot be served, NoWorkersError
        where no worker may take the request now.
        """
        config, how = self._how(overrides)
        content = Content(block_mm_infos, lora_name, cache_namespace)
        prompt = self._prompt(token_ids, content, how, config)
        with self._lock:
            now = self._clock.now()
            self._expire(now)
            if request_id is not None and self._slots.worker_of(request_id) is not None:
                raise InvalidRequestError(
                    f"request id {request_id!r} is in use", field="request_id"
                )
            overlaps = self._match(prompt)
            eligible = self.registry.eligible(now)
            if excluded_workers:
                eligible = eligible & ~self._mask(excluded_workers)
            candidates = self._candidates(prompt, overlaps, eligible, now, config)
            number = choose(
                how,
                candidates,
                self._rng,
                allowed=None if allowed_workers is None else self._mask(allowed_workers),
                pinned=self._pin(pinned_worker),
                busy=self.limits.busy() if self.limits.any_busy else None,
            )
            overlap = 0 if overlaps.device is None else int(overlaps.device[number])
            saved, host, disk = overlap, 0, 0
            if overlaps.host is not None and overlaps.disk is not None:
                host, disk = int(overlaps.host[number]), int(overlaps.disk[number])
                saved += int(lower_saving(config.cost_params(), host, disk))
            worker = self.registry.worker(number)
            if request_id is not None:
                booked = self._book(
                    request_id, number, prompt, saved, now, expected_output_tokens, config
                )
                if booked and self._observer is not None:
                    self._observer.on_booked(request_id, number, candidates)
                if prompt.local is not None and self.index.predicts:
                    self.index.record(worker, prompt.local, sequence_hashes(prompt.local), now)
        return Decision(
            worker=worker,
            number=number,
            overlap_blocks=overlap,
            request_blocks=-(-prompt.isl // self.block_size),
            cached_tokens=min(overlap * self.block_size, prompt.isl),
            request_id=request_id,
            host_overlap_blocks=host,
            disk_overlap_blocks=disk,
        )

    def explain(
        self,
        token_ids: Integers,
        *,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
        block_mm_infos: BlockMmInfos | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Explanation:
        """Every candidate's cost and what it is made of, whatever the mode. Books nothing."""
        config, decides = self._how(overrides)
        how = new_strategy(_DYNAMO)
        content = Content(block_mm_infos, lora_name, cache_namespace)
        prompt = self._prompt(token_ids, content, how, config)
        with self._lock:
            now = self._clock.now()
            self._expire(now)
            overlaps = self._match(prompt)
            blocks, _ = self._slots.potential(prompt.sequence, prompt.isl, None)
            states = {source.worker: source.state.value for source in self.index.sources()}
            reasons = {
                number: entry.reason or entry.state.value
                for entry in self.registry.entries()
                for number in entry.numbers
            }
            numbered = self.registry.numbered()
            candidates = terms(
                config.cost_params(),
                numbered,
                isl=prompt.isl,
                block_size=self.block_size,
                overlaps=overlaps.device,
                host_overlaps=overlaps.host,
                disk_overlaps=overlaps.disk,
                prefill_tokens=self._slots.active_prefill_tokens(),
                potential_blocks=blocks,
                active_requests=self._slots.active_requests(),
                eligible=self.registry.eligible(now),
                reasons=reasons,
                index_states={n: states.get(w, SourceState.SILENT.value) for n, w in numbered},
            )
            if decides.explain is not None:
                own = decides.explain(
                    self._candidates(prompt, overlaps, self.registry.eligible(now), now, config)
                )
                candidates = [
                    replace(each, policy_terms=own.get(each.number)) for each in candidates
                ]
        return Explanation(
            mode=config.mode,
            policy=config.policy_name,
            isl=prompt.isl,
            block_size=self.block_size,
            request_blocks=-(-prompt.isl // self.block_size),
            temperature=config.router_temperature,
            params=vars(config.cost_params()),
            candidates=tuple(candidates),
        )

    def overlaps(
        self,
        token_ids: Integers,
        *,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
        block_mm_infos: BlockMmInfos | None = None,
    ) -> dict[WorkerWithDpRank, int]:
        """Leading blocks of the prompt that each worker holds on its device, registered or not."""
        return self._asked(
            self.index.scores, token_ids, Content(block_mm_infos, lora_name, cache_namespace)
        )

    def tier_overlaps(
        self,
        token_ids: Integers,
        *,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
        block_mm_infos: BlockMmInfos | None = None,
    ) -> dict[WorkerWithDpRank, TierOverlap]:
        """The same by storage tier, of every worker that holds a prefix in all tiers together."""
        return self._asked(
            self.index.tier_scores, token_ids, Content(block_mm_infos, lora_name, cache_namespace)
        )

    def potential_loads(
        self,
        token_ids: Integers,
        *,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
    ) -> list[PotentialLoad]:
        """What every registered rank's load would be with this prompt on it."""
        content = Content(None, lora_name, cache_namespace)
        local = hash_prompt(token_ids, self.block_size, content)
        prompt = Prompt(prompt_length(token_ids), local, sequence_hashes(local))
        with self._lock:
            self._expire(self._clock.now())
            saved = self._match(prompt).saved(self.config.cost_params())
            blocks, tokens = self._slots.potential(prompt.sequence, prompt.isl, saved)
            return [
                PotentialLoad(worker, int(blocks[number]), int(tokens[number]))
                for number, worker in self.registry.numbered()
            ]

    def has_room(self, worker: WorkerLike | None = None) -> bool:
        """Whether a request, for that worker if one is given, should go now rather than wait.

        False while every worker it may go to is saturated; see AdmissionConfig.queue_threshold.
        """
        with self._lock:
            eligible = self.registry.eligible(self._clock.now())
            if worker is not None:
                eligible = eligible & self._mask([as_worker(worker)])
            return self.limits.has_room(eligible)

    def uncached_tokens(
        self,
        token_ids: Integers,
        *,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
    ) -> int:
        """Prompt tokens that even the worker with the longest overlap would have to compute."""
        isl = prompt_length(token_ids)
        content = Content(None, lora_name, cache_namespace)
        with self._lock:
            overlaps = self._match(
                Prompt(isl, hash_prompt(token_ids, self.block_size, content), None)
            )
            saved = overlaps.saved(self.config.cost_params())
            usable = self.registry.eligible(self._clock.now())
            best = 0 if saved is None else int(saved[usable].max(initial=0))
        return max(0, isl - best * self.block_size)

    # Requests in flight

    def mark_prefill_complete(self, request_id: str) -> bool:
        """The first token is out. False if the request is not booked, which is no error."""
        with self._lock:
            if self._observer is not None:
                self._observer.on_first_token(request_id, self._clock.now())
            return self._slots.mark_prefill_completed(request_id)

    def add_output_tokens(self, request_id: str, generated: int) -> None:
        """`generated` tokens are out in all. Counts where output blocks are tracked."""
        if self.config.router_track_output_blocks:
            with self._lock:
                self._slots.add_output_tokens(request_id, generated)

    def touch(self, request_id: str) -> bool:
        """The request is alive: it expires `active_request_expiry_secs` from now."""
        with self._lock:
            return self._slots.touch(request_id, self._clock.now())

    def free(self, request_id: str, *, output_tokens: int | None = None) -> bool:
        """The request ended, however it did. False if it is not booked, which is no error.

        `output_tokens`, where somebody has counted them, tells a policy how long a token takes.
        """
        with self._lock:
            if self._observer is not None:
                self._observer.on_end(request_id, self._clock.now(), output_tokens)
            return self._slots.free(request_id)

    def close(self) -> None:
        """Stop the index's thread and let go of the registry. Idempotent."""
        self.index.close()
        if self._on_add in self.registry.on_add:
            self.registry.on_add.remove(self._on_add)
            self.registry.on_remove.remove(self._on_remove)
            if self._observer is not None:
                self.registry.on_update.remove(self._on_update)

    def __enter__(self) -> "KvRouter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Inside

    def _asked(
        self, ask: Callable[[npt.NDArray[np.uint64]], T], token_ids: Integers, content: Content
    ) -> T:
        """What the index says of a prompt's full blocks now."""
        local = hash_prompt(token_ids, self.block_size, content)
        with self._lock:
            self.index.expire(self._clock.now())
            return ask(local)

    def _how(self, overrides: Mapping[str, Any] | None) -> tuple[KvRouterConfig, Strategy]:
        if not overrides:
            return self.config, self._strategy
        try:
            config = replace(self.config, **overrides)
        except TypeError:
            raise ConfigError(f"overrides: unknown key among {', '.join(overrides)}") from None
        if config.policy_name != self.config.policy_name:
            how = new_strategy(config)
            if how.observer is not None:
                raise ConfigError(
                    f"overrides: {config.policy_name!r} learns from what it sends; a router has"
                    " it from the start, or not at all",
                    key="policy",
                )
            return config, how
        if self._observer is None and config.mode == "kv":
            return config, new_strategy(config)
        temperature = config.router_temperature
        if config.mode == "kv" and temperature != self.config.router_temperature:
            return config, replace(
                self._strategy, pick=lambda costs, rng: pick(costs, temperature, rng)
            )
        return config, self._strategy

    def _prompt(
        self, token_ids: Integers, content: Content, how: Strategy, config: KvRouterConfig
    ) -> Prompt:
        isl = prompt_length(token_ids)
        if not how.needs_overlaps:
            return Prompt(isl, None, None)
        local = hash_prompt(token_ids, self.block_size, content)
        if not config.router_track_active_blocks:
            return Prompt(isl, local, None)
        if not config.router_assume_kv_reuse:
            return Prompt(isl, local, self._slots.private_hashes(len(local)))
        return Prompt(isl, local, sequence_hashes(local))

    def _candidates(
        self,
        prompt: Prompt,
        overlaps: Overlaps,
        eligible: Mask,
        now: float,
        config: KvRouterConfig,
    ) -> Candidates:
        spared = overlaps.device
        if overlaps.host is not None:
            spared = overlaps.saved(config.cost_params())
        return Candidates(
            self._slots,
            isl=prompt.isl,
            eligible=eligible,
            overlaps=overlaps.device,
            seq_hashes=prompt.sequence,
            host_overlaps=overlaps.host,
            disk_overlaps=overlaps.disk,
            spared=spared,
            now=now,
        )

    def _match(self, prompt: Prompt) -> Overlaps:
        if prompt.local is None:
            return _UNASKED
        if self._overlaps.capacity != self.registry.capacity:
            self._overlaps = Overlaps(self.registry.capacity)
        self._overlaps.read(self.index, prompt.local)
        return self._overlaps

    def _book(
        self,
        request_id: str,
        number: int,
        prompt: Prompt,
        saved: int,
        now: float,
        expected_output_tokens: int | None,
        config: KvRouterConfig,
    ) -> bool:
        return self._slots.add_request(
            request_id,
            number,
            prompt.sequence,
            isl=prompt.isl,
            overlap_blocks=saved,
            now=now,
            expected_output_tokens=expected_output_tokens,
            track_prefill=config.router_track_prefill_tokens,
        )

    def _expire(self, now: float) -> None:
        for request_id in self._slots.expire(now):
            if self._observer is not None:
                self._observer.on_end(request_id, now, None)
        self.index.expire(now)

    def _mask(self, workers: Iterable[WorkerLike]) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self.registry.capacity, dtype=np.bool_)
        for worker in workers:
            if isinstance(worker, tuple):
                wanted = [as_worker(worker)]
            else:
                entry = self.registry.entry(worker)
                wanted = entry.ranks if entry else []
            for rank in wanted:
                if rank.worker_id in self.registry:
                    mask[self.registry.number(rank)] = True
        return mask

    def _pin(self, worker: WorkerLike | None) -> int | None:
        return None if worker is None else self.registry.number(as_worker(worker))

    def _on_add(self, worker: WorkerWithDpRank, number: int) -> None:
        with self._lock:
            self._slots.add_worker(number)
            self.index.bind(worker, number)

    def _on_remove(self, worker: WorkerWithDpRank, number: int) -> None:
        with self._lock:
            self._dropped += self._slots.remove_worker(number)
            self.index.unbind(worker)
            if self._observer is not None:
                self._observer.on_worker_gone(number)

    def _on_update(self, entry: WorkerEntry) -> None:
        with self._lock:
            assert self._observer is not None
            for number in entry.numbers:
                self._observer.on_worker(number, entry)


def _index_of(config: KvRouterConfig) -> PrefixIndex:
    if config.use_kv_events:
        return EventIndex(
            read_path=config.index_read_path,
            max_blocks=config.router_max_index_blocks,
            predict_ttl_s=config.router_predicted_ttl_secs,
        )
    return ApproximateIndex(
        ttl_s=config.router_ttl_secs,
        max_blocks=config.router_max_tree_size,
        prune_target_ratio=config.router_prune_target_ratio,
    )
