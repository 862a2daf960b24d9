"""What can be asked of a KvRouter without booking anything. Base of kv_router.py."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..indexer.hashing import BlockMmInfos, Integers, sequence_hashes
from ..indexer.prefix_index import TierOverlap
from ..indexer.source import SourceState
from ..runtime.identity import WorkerWithDpRank, as_worker
from .config import DYNAMO, KvRouterConfig
from .policies import new_policy
from .policy import Explanation, terms
from .prompt import Content, Prompt, hash_prompt, prompt_length
from .router_state import RouterState, WorkerLike
from .views import PotentialLoad, WorkerView, worker_views

T = TypeVar("T")
_DYNAMO = replace(KvRouterConfig(), policy=DYNAMO)


class RouterQuestions(RouterState):
    """Answers about workers, overlaps, loads and costs."""

    @property
    def uses_caches(self) -> bool:
        """Whether decisions look at the workers' caches, and at the slots' blocks, at all."""
        return self._policy.needs_overlaps

    @property
    def policy_failures(self) -> int:
        """How often a policy that is not ours has raised, or answered nonsense."""
        return self._choice.failures

    def workers(self) -> list[WorkerView]:
        """Every registered rank, then those that only publish events."""
        with self._lock:
            return worker_views(self.registry, self._slots, self.index.sources())

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
        config, decides, _ = self._how(overrides)
        how = new_policy(_DYNAMO)
        content = Content(block_mm_infos, lora_name, cache_namespace)
        prompt = self._prompt(token_ids, content, how, config)
        with self._lock:
            now = self._clock.now()
            self._expire(now)
            eligible = self.registry.eligible(now)
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
                eligible=eligible,
                reasons=reasons,
                index_states={n: states.get(w, SourceState.SILENT.value) for n, w in numbered},
            )
            own = decides.explain(self._candidates(prompt, overlaps, eligible, now, config))
            if own:
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

    def seconds_until_free(self, worker: WorkerLike | None = None) -> float:
        """Seconds until a request, for that worker if one is given, should go rather than wait.

        0 is now; inf is not before load falls. See AdmissionConfig.hold and queue_threshold. A hold
        is for those who have a choice: for one worker alone it is 0.
        """
        with self._lock:
            if worker is not None and self.limits.policy_holds:
                return 0.0
            now = self._clock.now()
            self._expire(now)
            eligible = self.registry.eligible(now)
            if worker is not None:
                eligible = eligible & self._mask([as_worker(worker)])
            return self.limits.seconds_until_free(eligible, now)

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

    def queue_terms(
        self,
        token_ids: Integers,
        *,
        lora_name: str | None = None,
        cache_namespace: str | None = None,
    ) -> tuple[int, float]:
        """What its turn in the admission queue goes by: (uncached tokens, order penalty in s)."""
        if not self.limits.orders_by_tokens:
            return 1, 0.0
        tokens = self.uncached_tokens(
            token_ids, lora_name=lora_name, cache_namespace=cache_namespace
        )
        with self._lock:
            return tokens, self.limits.order_penalty_s(tokens)

    def _asked(
        self, ask: Callable[[npt.NDArray[np.uint64]], T], token_ids: Integers, content: Content
    ) -> T:
        """What the index says of a prompt's full blocks now."""
        local = hash_prompt(token_ids, self.block_size, content)
        with self._lock:
            self.index.expire(self._clock.now())
            return ask(local)
