"""CandidateSource: the workers a prompt may go to, with what each has of it and its load."""

import math
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..base.clock import Clock
from ..base.errors import ConfigError
from ..base.identity import WorkerWithDpRank, as_worker
from ..indexer.approximate import ApproximateIndex
from ..indexer.event_index import EventIndex
from ..indexer.prefix_index import PrefixIndex
from ..slots.table import SlotTable
from ..workers.registry import PREDICTED, WorkerEntry, WorkerRegistry
from .config import KvRouterConfig
from .event_watch import EventWatch
from .overlaps import Overlaps
from .placement import Computed
from .policy import Blocks, Candidates, Decision, Mask, Policy, Preferred, tier_weights_given
from .prompt import Prompt
from .views import PotentialLoad

if TYPE_CHECKING:
    from .replicas import PeerLoad

WorkerLike = int | tuple[int, int]
"""A worker_id, or (worker_id, dp_rank)."""

EXPIRE_EVERY_S = 0.01
"""For how long what is too old may be kept."""


class CandidateSource:
    """Registry, index and slots, read together. Arrays are by worker number.

    Not thread-safe: the KvRouter that has it holds its lock around every call.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        index: PrefixIndex,
        slots: SlotTable,
        config: KvRouterConfig,
    ) -> None:
        self.registry = registry
        self.index = index
        self.slots = slots
        self._overlaps = Overlaps(0)
        self.config = config
        self.expire_at = -math.inf
        self._peers: PeerLoad | None = None
        self.has_peers = False
        """whether other routers' bookings are counted"""
        self.watch: EventWatch | None = None
        self.watched: Collection[str] = ()
        """the requests of which it looks after the events"""
        if isinstance(index, EventIndex):
            self.watch = EventWatch(index, registry, adapts_ttl=config.adapts_predicted_ttl)
            self.watched = self.watch.samples

    def on_worker(self, entry: WorkerEntry, policy: Policy) -> None:
        """A worker was added or renewed, or has another source of events."""
        for number in entry.numbers:
            policy.on_worker(number, entry)
        if isinstance(self.index, EventIndex):
            for worker in entry.ranks:
                self.index.predict(worker, entry.event_source == PREDICTED)
        if self._peers is not None:
            self._peers.on_worker(entry.ranks)

    def on_worker_gone(self, number: int) -> None:
        """A worker was removed, and the bookings there were dropped."""
        if self._peers is not None:
            self._peers.evidence.on_worker_gone(number)

    def count_peers(
        self, learner: Policy, lock: AbstractContextManager[object], clock: Clock
    ) -> "PeerLoad":
        """See KvRouter. ConfigError where the load is not shared."""
        if not self.config.router_replica_sync:
            raise ConfigError("router_replica_sync is off", key="router_replica_sync")
        from .replicas import PeerLoad  # only routers that share load need it

        self.has_peers = True
        self._peers = PeerLoad(self.registry, self.slots, self.config, learner, lock, clock)
        return self._peers

    def apply_event(self, event: bytes, worker_id: WorkerLike | None) -> None:
        """See KvRouter; it needs no lock."""
        index = self.index
        if not isinstance(index, EventIndex):
            raise ConfigError("use_kv_events: off, so events are not taken", key="use_kv_events")
        if worker_id is None:
            index.apply(event)
        else:
            index.apply_cache_event(as_worker(worker_id), event)

    def candidates(
        self, prompt: Prompt, config: KvRouterConfig, now: float, *, with_caches: bool
    ) -> Candidates:
        """The prompt before every worker that takes requests now; good until the next match.

        Without caches it is neither hashed nor matched. `config` weighs the lower tiers, and says
        which blocks of the prompt count as load.
        """
        eligible = self.registry.eligible(now)
        if not with_caches:
            return Candidates(self.slots, isl=prompt.isl, eligible=eligible, now=now)
        overlaps = self.match(prompt)
        hashes: npt.NDArray[np.uint64] | None = prompt.sequence_hashes
        if not (config.router_track_active_blocks and config.router_assume_kv_reuse):
            hashes = self._load_hashes(prompt, config)
        saved, weights_given = overlaps.device, False
        if overlaps.host is not None:
            params = config.cost_params
            saved, weights_given = overlaps.saved(params), tier_weights_given(params)
        return Candidates(
            self.slots,
            isl=prompt.isl,
            eligible=eligible,
            overlaps=overlaps.device,
            sequence_hashes=hashes,
            host_overlaps=overlaps.host,
            disk_overlaps=overlaps.disk,
            saved_prefill_blocks=saved,
            weights_given=weights_given,
            unheard=None if self._peers is None else self._peers.unheard(now),
            now=now,
        )

    def match(self, prompt: Prompt) -> Overlaps:
        """What every worker has of the prompt; good until the next match."""
        if self._overlaps.capacity != self.registry.capacity:
            self._overlaps = Overlaps(self.registry.capacity)
        self._overlaps.read(self.index, prompt.local_hashes)
        return self._overlaps

    def uncached_tokens(self, prompt: Prompt, config: KvRouterConfig, now: float) -> int:
        """Prompt tokens that even the worker which is spared most would have to compute."""
        saved = self._saved(self.match(prompt), config)
        best = int(saved[self.registry.eligible(now)].max(initial=0))
        return max(0, prompt.isl - best * prompt.block_size)

    def _saved(self, overlaps: Overlaps, config: KvRouterConfig) -> Blocks:
        """Whole blocks of prefill that each worker is spared. Weights are read only if needed."""
        return overlaps.device if overlaps.host is None else overlaps.saved(config.cost_params)

    def potential_loads(self, prompt: Prompt, config: KvRouterConfig) -> list[PotentialLoad]:
        """What every registered rank's load would be with this prompt on it."""
        saved = self._saved(self.match(prompt), config)
        blocks, tokens = self.slots.potential(prompt.sequence_hashes, prompt.isl, saved)
        return [
            PotentialLoad(worker, int(blocks[number]), int(tokens[number]))
            for number, worker in self.registry.numbered()
        ]

    def mask(self, workers: Iterable[WorkerLike]) -> Mask:
        """True for these workers; an int stands for all ranks. Unknown ones are ignored."""
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

    def wait_times(self, anywhere: float, waiting: Mask) -> Callable[[WorkerLike | None], float]:
        """Seconds to wait: `anywhere` for a request that may go anywhere, inf for one that may only
        go to a rank that is `waiting`."""
        marks = waiting.tobytes()

        def seconds(worker: WorkerLike | None) -> float:
            if worker is None:
                return anywhere
            number = self.registry.find(as_worker(worker))
            return math.inf if number is not None and marks[number] else 0.0

        return seconds

    def pin(self, worker: WorkerLike | None, candidates: Candidates) -> int | None:
        """The number of the one worker a request asks for, if it asks for one.

        It is eligible if it is well: to be spared for a while, after a failure or on probation,
        is for requests that have a choice.
        """
        if worker is None:
            return None
        number = self.registry.number(as_worker(worker))
        if not candidates.eligible[number] and self.registry.is_ready(number):
            candidates.eligible = candidates.eligible.copy()
            candidates.eligible[number] = True
        return number

    def exclude(
        self, workers: Collection[WorkerLike], candidates: Candidates, *, even_inhibited: bool
    ) -> None:
        """Leave workers out. With `even_inhibited` those that are well count, however spared, where
        no other worker is left: see `pin`."""
        others = ~self.mask(workers)
        candidates.eligible = candidates.eligible & others
        if even_inhibited and 1 not in candidates.eligible.tobytes():
            candidates.eligible = self.registry.inhibited() & others

    def count_computed(self, computed: Computed, candidates: Candidates) -> Preferred | None:
        """Have a worker count as the holder of what it has just computed, and go before others;
        None if it is not registered any more."""
        number, blocks = self.registry.find(computed.worker), computed.blocks
        overlaps, saved = candidates.overlaps, candidates.saved_prefill_blocks
        if number is None or overlaps is None or saved is None:
            return None
        candidates.overlaps, candidates.saved_prefill_blocks = overlaps.copy(), saved.copy()
        for known in (candidates.overlaps, candidates.saved_prefill_blocks):
            known[number] = max(blocks, known[number])
        return Preferred(number, math.inf)

    def preferred(self, worker: WorkerLike | None, config: KvRouterConfig) -> Preferred | None:
        """The worker that a request had better go to, if it is registered."""
        if worker is None:
            return None
        number = self.registry.find(as_worker(worker))
        discount = config.affinity.session_affinity_discount
        return None if number is None else Preferred(number, discount)

    def expire(self, now: float) -> list[str]:
        """Drop bookings and predictions that are too old; the ids of the bookings. To be called
        from `expire_at` on."""
        self.expire_at = now + EXPIRE_EVERY_S
        expired = self.slots.expire(now)
        self.index.expire(now)
        if self.watch is not None:
            self.watch.look(now)
        return expired

    def on_booked(
        self, request_id: str, worker: WorkerWithDpRank, prompt: Prompt, now: float
    ) -> None:
        """A request whose prompt was matched goes to a worker: it will hold its blocks."""
        if self.watch is not None:
            self.watch.on_booked(request_id, worker, prompt, now)
        if self._peers is not None:
            self._peers.on_own_booked(now)
        if self.index.predicts:
            self.index.record(worker, prompt.local_hashes, prompt.sequence_hashes, now)

    def on_first_token(self, request_id: str, now: float) -> None:
        """Its prompt is computed."""
        if self._peers is not None and not self.slots.is_owned(request_id):
            self._peers.on_own_first_token(request_id)
        if self.watch is not None:
            self.watch.on_first_token(request_id, now)

    def _load_hashes(self, prompt: Prompt, config: KvRouterConfig) -> npt.NDArray[np.uint64] | None:
        """Under which hashes the prompt's blocks are counted as load, where these are not its own;
        None: not at all."""
        if not config.router_track_active_blocks:
            return None
        return self.slots.private_hashes(len(prompt.local_hashes))


def decision_of(
    candidates: Candidates, number: int, worker: WorkerWithDpRank, request_id: str | None
) -> Decision:
    """The decision for one of the candidates: what it has of the prompt."""
    overlap = cached = host = disk = 0
    isl, block_size = candidates.isl, candidates.block_size
    if candidates.overlaps is not None:
        overlap = int(candidates.overlaps[number])
        cached = overlap * block_size
    if candidates.host_overlaps is not None and candidates.disk_overlaps is not None:
        host = int(candidates.host_overlaps[number])
        disk = int(candidates.disk_overlaps[number])
    return Decision(  # by position: it takes a third of the time
        worker,
        number,
        overlap,
        -(-isl // block_size),
        cached if cached < isl else isl,
        request_id,
        host,
        disk,
    )


UNKNOWN_SHARE = 8
"""Unregistered workers fill one part in this many of the index, if they can be that small."""
LEAST_UNKNOWN_BLOCKS = 4096
"""That each of them may hold in any case: what an engine caches until it is registered."""


def new_index(config: KvRouterConfig) -> PrefixIndex:
    """The index that these settings ask for: of engines' events, or predicting from decisions."""
    predicting = ApproximateIndex(
        ttl_s=config.router_ttl_secs,
        max_blocks=config.router_max_tree_size,
        prune_target_ratio=config.router_prune_target_ratio,
    )
    if config.use_kv_events:
        return EventIndex(
            max_workers=config.max_unknown_workers,
            max_blocks=config.router_max_index_blocks,
            max_unknown_blocks=max(
                config.router_max_index_blocks // UNKNOWN_SHARE // config.max_unknown_workers,
                LEAST_UNKNOWN_BLOCKS,
            ),
            predict_ttl_s=0.0 if config.adapts_predicted_ttl else config.router_predicted_ttl_secs,
            silent=predicting,
        )
    return predicting


def new_slots(config: KvRouterConfig) -> SlotTable:
    """The slot table that these settings ask for."""
    return SlotTable(
        config.block_size,
        expiry_s=config.active_request_expiry_secs,
        max_entries=config.router_max_booked_blocks,
        owner_share=config.router_max_booked_share,
    )
