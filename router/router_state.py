"""What a KvRouter is made of, and how its parts are looked at together. Base of kv_router.py."""

import random
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..indexer.approximate import ApproximateIndex
from ..indexer.event_index import EventIndex
from ..indexer.hashing import Integers, sequence_hashes
from ..indexer.prefix_index import PrefixIndex
from ..runtime.clock import Clock, SystemClock
from ..runtime.identity import WorkerWithDpRank, as_worker
from ..slots.table import SlotTable
from ..workers.registry import WorkerEntry, WorkerRegistry
from .admission import LoadLimits
from .config import KvRouterConfig
from .overlaps import Overlaps
from .policies import PolicyChoice
from .policy import Candidates, Mask, Policy
from .prompt import Content, Prompt, hash_prompt, prompt_length

WorkerLike = int | tuple[int, int]
_UNASKED = Overlaps(0)


class RouterState:
    """Workers, caches, loads and the strategy over them, behind one lock."""

    def __init__(
        self,
        config: KvRouterConfig | None = None,
        *,
        registry: WorkerRegistry | None = None,
        clock: Clock | None = None,
        seed: int | None = None,
        strategy: Policy | None = None,
    ) -> None:
        self.config = config or KvRouterConfig()
        self.registry = registry if registry is not None else WorkerRegistry()
        self.block_size = self.config.block_size
        self.index: PrefixIndex = _index_of(self.config)
        self._clock = clock or SystemClock()
        self._rng = random.Random(self.config.seed if seed is None else seed)
        self._slots = SlotTable(self.block_size, expiry_s=self.config.active_request_expiry_secs)
        self._choice = PolicyChoice(self.config, strategy)
        self._policy = self._choice.policy
        self.limits = LoadLimits(self.config.admission, self._slots, self.registry, self._policy)
        self._overlaps = Overlaps(0)
        self._dropped: list[str] = []
        self._lock = threading.RLock()
        self.registry.on_add.append(self._on_add)
        self.registry.on_remove.append(self._on_remove)
        for number, worker in self.registry.numbered():
            self._on_add(worker, number)
        if self.registry.capacity > 0:  # arrays are as long as that, whoever has left
            self._slots.reach(self.registry.capacity - 1)
        self.registry.on_update.append(self._on_update)
        for entry in self.registry.entries():
            self._on_update(entry)

    def close(self) -> None:
        """Stop the index's thread and let go of the registry. Idempotent."""
        self.index.close()
        if self._on_add in self.registry.on_add:
            self.registry.on_add.remove(self._on_add)
            self.registry.on_remove.remove(self._on_remove)
            self.registry.on_update.remove(self._on_update)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _how(
        self, overrides: Mapping[str, Any] | None
    ) -> tuple[KvRouterConfig, Policy, float | None]:
        if not overrides:
            return self.config, self._policy, None
        return self._choice.overridden(overrides)

    def _prompt(
        self, token_ids: Integers, content: Content, how: Policy, config: KvRouterConfig
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
        saved = overlaps.device
        if overlaps.host is not None:
            saved = overlaps.saved(config.cost_params())
        return Candidates(
            self._slots,
            isl=prompt.isl,
            eligible=eligible,
            overlaps=overlaps.device,
            sequence_hashes=prompt.sequence,
            host_overlaps=overlaps.host,
            disk_overlaps=overlaps.disk,
            saved_prefill_blocks=saved,
            now=now,
        )

    def _match(self, prompt: Prompt) -> Overlaps:
        if prompt.local is None:
            return _UNASKED
        if self._overlaps.capacity != self.registry.capacity:
            self._overlaps = Overlaps(self.registry.capacity)
        self._overlaps.read(self.index, prompt.local)
        return self._overlaps

    def _expire(self, now: float) -> None:
        for request_id in self._slots.expire(now):
            self._policy.on_end(request_id, now, None)
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
            self._policy.on_worker_gone(number)

    def _on_update(self, entry: WorkerEntry) -> None:
        with self._lock:
            for number in entry.numbers:
                self._policy.on_worker(number, entry)


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
