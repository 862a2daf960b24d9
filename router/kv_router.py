"""KvRouter: finds the best worker for a prompt, and keeps count of what it sent where."""

import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from msgspec.structs import replace

from ..base.clock import Clock, SystemClock
from ..base.errors import InvalidRequestError, NoWorkersError
from ..base.identity import WorkerWithDpRank, as_worker
from ..indexer.hashing import Integers
from ..indexer.prefix_index import TierOverlap
from ..workers.registry import WorkerEntry, WorkerFacts, WorkerRegistry
from .admission import NO_OBJECTIVES, LoadLimits, Objectives
from .affinity import BoundWorker, SessionAffinity
from .candidates import CandidateSource, WorkerLike, decision_of, new_index, new_slots
from .config import KvRouterConfig
from .explain import explain
from .placement import Computed, Placement, wanted_by
from .policies import PolicyChoice, plain_decisions
from .policy import Candidates, Decision, Explanation, Mask, Policy, ResidualState, all_busy, choose
from .prompt import Content, ContentFields, Prompt, Tokens, prompt_of
from .runners_up import rank_others
from .steps import Steps, finish
from .views import PotentialLoad, WorkerView, views_in_steps

if TYPE_CHECKING:
    from .disagg import PairRule
    from .pairs import PairDecision, Side
    from .replicas import PeerLoad


class KvRouter(AbstractContextManager["KvRouter"]):
    """Routes prompts to workers by their caches and their load.

    `registry` may be shared with the discovery of workers; `clock` and `seed` make a run
    repeatable; a `strategy`, a Policy, decides in place of the one that the settings name. Close it
    when done: the event index has a thread.

    Synchronous, without I/O, thread-safe by one lock. Load is booked and released nowhere else.

    Where token ids are asked for, `prompt` makes a handle that serves every question about one
    prompt and is hashed once; `lora_name`, `cache_namespace` and `block_mm_infos` go with the
    token ids, not with the handle. Prompts that differ in one of them share no cache.
    """

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
        self.index = new_index(self.config)
        self.clock = clock or SystemClock()
        self._rng = random.Random(self.config.seed if seed is None else seed)
        self.slots = new_slots(self.config)  # only to read
        self._source = CandidateSource(self.registry, self.index, self.slots, self.config)
        self._choice = PolicyChoice(self.config, strategy)
        self._policy, self.strategy = self._choice.policy, strategy
        self.shadow, self._learner = self._choice.shadow, self._choice.learner
        self.limits = LoadLimits(self.config.admission, self.slots, self.registry, self._policy)
        self.sessions = SessionAffinity(self.config.affinity, self.registry, self.clock)
        self._dropped: list[str] | None = None  # bookings of a worker that is being removed
        self._lock = threading.RLock()
        self._plain = plain_decisions(
            self._source, self._choice, self.limits, self._lock, self.clock, self._expire, self._rng
        )
        self.registry.on_add.append(self._on_add)
        self.registry.on_remove.append(self._on_remove)
        self.registry.on_update.append(self._on_update)
        for number, worker in self.registry.numbered():
            self._on_add(worker, number)
        if self.registry.capacity > 0:  # arrays are as long as that, workers that left included
            self.slots.reach(self.registry.capacity - 1)
        for entry in self.registry.entries():
            self._on_update(entry)

    def close(self) -> None:
        """Stop the index's thread and let go of the registry. Idempotent."""
        self.index.close()
        self.sessions.close()
        if self._on_add in self.registry.on_add:
            self.registry.on_add.remove(self._on_add)
            self.registry.on_remove.remove(self._on_remove)
            self.registry.on_update.remove(self._on_update)

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def uses_caches(self) -> bool:
        """Whether decisions look at the workers' caches, and at the slots' blocks, at all."""
        return self._policy.needs_overlaps

    @property
    def policy_failures(self) -> int:
        """How often a policy that is not ours has raised, or answered nonsense."""
        return self._choice.failures

    @property
    def slow_decisions(self) -> int:
        """How many decisions of a policy that is not ours took longer than 5 ms."""
        return self._choice.slow

    @property
    def residuals(self) -> ResidualState | None:
        """How well the policy foresees, and whether that decides; None where it does not."""
        with self._lock:
            return self._policy.residuals()

    def change(self, config: KvRouterConfig) -> None:
        """Use other weights, temperature and thresholds; the rest must be as before."""
        with self._lock:
            self.config = config
            self._choice.change(config)
            self._policy = self._choice.policy
            self.limits.config = config.admission

    # Workers

    def add_worker(self, worker_id: int, **facts: Unpack[WorkerFacts]) -> WorkerEntry:
        """Register a worker, ready for requests, or renew what is known of one: see WorkerEntry."""
        with self._lock:
            return self.registry.add(worker_id, **facts)

    def remove_worker(self, worker_id: int) -> list[str]:
        """Forget a worker, its blocks and its bookings; the ids of the requests it had."""
        with self._lock:
            dropped = self._dropped = []
            self.registry.remove(worker_id)
            self._dropped = None
            return dropped

    def requests_of(self, worker_id: int) -> int:
        """Requests booked here on all ranks of a worker; 0 if it is not registered."""
        with self._lock:
            return int(self.slots.own_requests()[self._source.mask([worker_id])].sum())

    def count_peers(self) -> "PeerLoad":
        """Count other routers' bookings too; ConfigError unless `router_replica_sync` is on."""
        peers = self._source.count_peers(self._learner, self._lock, self.clock)
        self.limits.seconds_to_probe = peers.seconds_to_probe
        return peers

    def workers(self) -> list[WorkerView]:
        """Every registered rank, then those that only publish events."""
        with self._lock:
            return [view for views in self.workers_in_steps() for view in views]

    def workers_in_steps(self) -> Iterator[list[WorkerView]]:
        """The same, a few at a time or none yet, for a reader that must not take long at a time.
        Each step is of a moment of its own: who leaves meanwhile is left out, who comes may be."""
        with self._lock:
            self._expire()
        return views_in_steps(self.registry, self.slots, self.index, self._lock, self.sessions)

    def apply_event(self, event: bytes, worker_id: WorkerLike | None = None) -> None:
        """Take one event in: a message of the event plane, or a JSON cache event of `worker_id`.
        Raises EventError if it cannot be decoded or, for a JSON event, names unknown blocks;
        ConfigError if this router predicts caches instead of following events."""
        self._source.apply_event(event, worker_id)

    # Decisions

    def prompt(self, token_ids: Integers, **content: Unpack[ContentFields]) -> Prompt:
        """A handle for a prompt, taken in place of its token ids; hashed once, on first use.

        The token ids must not change before that. Raises InvalidRequestError if there are none."""
        return Prompt(token_ids, self.block_size, Content(**content))

    def best_worker(
        self, token_ids: Tokens, request_id: str | None = None, **how: Any
    ) -> tuple[int, int, int]:
        """(worker_id, dp_rank, overlap in blocks) of the best worker; takes what `decide` takes."""
        decision = self.decide(token_ids, request_id, **how)
        return decision.worker.worker_id, decision.worker.dp_rank, decision.overlap_blocks

    def decide(
        self,
        token_ids: Tokens,
        request_id: str | None = None,
        *,
        allowed_workers: Iterable[WorkerLike] | None = None,
        excluded_workers: Collection[WorkerLike] = (),
        even_inhibited: bool = False,
        pinned_worker: WorkerLike | None = None,
        preferred_worker: WorkerLike | None = None,
        computed: Computed | None = None,
        expected_output_tokens: int | None = None,
        overrides: Mapping[str, Any] | None = None,
        owner: str | None = None,
        tenant: str = "",
        asked: Objectives = NO_OBJECTIVES,
        arrived: float | None = None,
        runners_up: int = 0,
        **content: Unpack[ContentFields],
    ) -> Decision:
        """Choose a worker, and with a `request_id` book the request on it until `free`.

        `overrides` are KvRouterConfig fields for this request alone. An int in `allowed_workers` or
        `excluded_workers` stands for all ranks of a worker, elsewhere for rank 0. The preferred one
        is let off a part of its cost. `computed`: what a worker has and the index may not know; it
        is chosen where it takes the request. `even_inhibited`: see CandidateSource.exclude;
        `tenant`: see TenantConfig. `asked`: its objectives, of a request that `arrived` then, or
        now; see AdmissionConfig.shed. `runners_up`: how many other workers the decision is to name.
        InvalidRequestError for what cannot be served, NoWorkersError if no worker can take it.
        """
        config, policy, temperature = self._choice.of_request(overrides)
        prompt = prompt_of(token_ids, self.block_size, content)
        if policy.needs_overlaps:
            prompt.hashed()  # before the lock: a long prompt takes a while
        source, limits = self._source, self.limits
        with self._lock:
            now = self._expire()
            self._require_free(request_id)
            candidates = source.candidates(prompt, config, now, with_caches=policy.needs_overlaps)
            candidates.bound = limits.shed_bound(
                prompt.isl, asked, now - (now if arrived is None else arrived), tenant, now
            )
            preferred = source.preferred(preferred_worker, config)
            if computed is not None:
                preferred = source.count_computed(computed, candidates) or preferred
            pin = source.pin(pinned_worker, candidates)
            takers, weighted = candidates.eligible, self.registry.is_weighted
            if excluded_workers:
                source.exclude(excluded_workers, candidates, even_inhibited=even_inhibited)
            able = candidates.eligible
            allowed = None if allowed_workers is None else source.mask(allowed_workers)
            busy = limits.busy_of(takers, now) if limits.any_busy else None
            avoided = limits.avoided(takers) if weighted or limits.caps else None
            number = choose(
                policy, candidates, self._rng, allowed=allowed, pinned=pin, busy=busy,
                avoided=avoided, temperature=temperature, preferred=preferred,
            )  # fmt: skip
            if self.shadow is not None and pin is None and not overrides:
                self.shadow.compare(policy, candidates, number)
            others = () if not runners_up else rank_others(
                policy, candidates, (able, allowed, busy), self.registry, number, runners_up
            )  # fmt: skip
            decision = self._book(
                request_id, number, candidates, prompt, takers, config, expected_output_tokens,
                tenant, owner,
            )  # fmt: skip
        return replace(decision, runners_up=others) if others else decision

    def place(self, placement: Placement) -> Decision:
        """Choose a worker for a request with all that it asks for, and book it there until `free`.
        All that serve decide by this. A request of a session goes to the session's worker, which
        is bound to it. Raises what `decide` does."""
        if self._plain is not None and (plain := self._plain.place(placement)) is not None:
            return plain
        pinned, preferred = wanted_by(placement, self.sessions)
        decision = self.decide(
            placement.prompt, request_id := placement.request_id or None,
            allowed_workers=placement.allowed or None,
            excluded_workers=placement.excluded, even_inhibited=placement.retried,
            pinned_worker=pinned, preferred_worker=preferred, computed=placement.computed,
            expected_output_tokens=placement.expected_output_tokens, tenant=placement.tenant,
            asked=placement.objectives, owner=placement.owner, runners_up=placement.runners_up,
            arrived=None if placement.retried else placement.arrived or None,
        )  # fmt: skip
        try:
            self.sessions.bind(placement.session, decision.worker, in_flight=placement.in_flight)
        except BaseException:
            if request_id is not None:
                self.free(request_id)  # the caller does not know of the booking
            raise
        return decision

    def place_pair(
        self, placement: Placement, prefill: "KvRouter", rule: "PairRule"
    ) -> "PairDecision":
        """The same in front of decode workers, with prefill workers, which `prefill` routes to.

        A worker for each leg, or one for both, as `rule` says, booked at once in both routers: call
        `mark_prefill_complete` and `free` on each, and `rule.on_landed` with a decision's `landing`
        once the decode worker has begun or will not; it expires as bookings do. A session keeps its
        decode worker. Raises what `decide` does; overloaded while no decode worker has room.
        """
        from .pairs import PairDecision, choose_pair  # fleets without roles need none of it

        if prefill is self:
            raise ValueError("prefill workers have a router of their own")
        prompt, request_id = placement.prompt, placement.request_id or None
        if self.uses_caches or prefill.uses_caches:
            prompt.hashed()
        with self._lock, prefill._lock:
            self._require_free(request_id)
            prefill._require_free(request_id)
            decodes = self._side(placement)
            takers = decodes.candidates.eligible
            try:
                others = Placement(prompt, excluded=placement.excluded, retried=placement.retried)
                prefills = prefill._side(others)
            except NoWorkersError:
                prefills = None
            expected, now = placement.expected_output_tokens, decodes.candidates.now
            rule.expire(now)
            threshold = prefill.limits.config.queue_threshold
            verdict, target, source = choose_pair(rule, decodes, prefills, expected, threshold)
            runners_up = decodes.others(target, placement.runners_up)
            decode = self._book(
                request_id, target.number, target.candidates, prompt, takers, self.config, expected,
                placement.tenant, placement.owner, is_expected=source is not None,
            )  # fmt: skip
            first = landing = None
            try:
                if source is not None:
                    at, found = source.number, source.candidates
                    first = prefill._book(
                        request_id, at, found, prompt, found.eligible, prefill.config, 1, "", None
                    )
                    landing = rule.on_remote(
                        first.worker, decode.worker, target.uncached_tokens,
                        now + self.config.active_request_expiry_secs,
                    )  # fmt: skip
                rule.note(verdict)
                if runners_up:
                    decode = replace(decode, runners_up=runners_up)
                self.sessions.bind(placement.session, decode.worker, in_flight=placement.in_flight)
                return PairDecision(decode, first, *verdict[1:], landing)
            except BaseException:
                if landing is not None:
                    rule.on_landed(landing)
                if request_id is not None:
                    prefill.free(request_id)
                    self.free(request_id)
                raise

    def explain(self, token_ids: Tokens, **how: Any) -> Explanation:
        """Every candidate's cost and what it is made of; takes what `explain_steps` takes."""
        return finish(self.explain_steps(token_ids, **how))

    def explain_steps(
        self,
        token_ids: Tokens,
        *,
        overrides: Mapping[str, Any] | None = None,
        asked: Objectives = NO_OBJECTIVES,
        bound: BoundWorker | None = None,
        **content: Unpack[ContentFields],
    ) -> Steps[Explanation]:
        """The same, of this moment, in steps, for a session that is `bound`. Books nothing."""
        config, policy, _ = self._choice.of_request(overrides)
        prompt = prompt_of(token_ids, self.block_size, content).hashed()
        with self._lock:
            now, limits = self._expire(), self.limits
            return explain(self._source, policy, prompt, config, now, limits, asked, bound)

    def foreseen_ttft_s(self, request_id: str) -> tuple[float, float] | None:
        """Seconds to a booked request's first token, as the policy foresaw them then: on its
        worker, and on the soonest one. None where it foresees nothing, or is not trusted."""
        with self._lock:
            return self._policy.foreseen_ttft_s(request_id)

    def overlaps(
        self, token_ids: Tokens, **content: Unpack[ContentFields]
    ) -> dict[WorkerWithDpRank, int]:
        """Leading blocks of the prompt that each worker holds on its device, registered or not."""
        prompt = prompt_of(token_ids, self.block_size, content).hashed()
        with self._lock:
            self._expire()
            return self.index.scores(prompt.local_hashes)

    def tier_overlaps(
        self, token_ids: Tokens, **content: Unpack[ContentFields]
    ) -> dict[WorkerWithDpRank, TierOverlap]:
        """The same by storage tier, of every worker that holds a prefix in all tiers together."""
        prompt = prompt_of(token_ids, self.block_size, content).hashed()
        with self._lock:
            self._expire()
            return self.index.tier_scores(prompt.local_hashes)

    def potential_loads(
        self, token_ids: Tokens, **content: Unpack[ContentFields]
    ) -> list[PotentialLoad]:
        """What every registered rank's load would be with this prompt on it."""
        prompt = prompt_of(token_ids, self.block_size, content).hashed()
        with self._lock:
            self._expire()
            return self._source.potential_loads(prompt, self.config)

    # Waiting, for a queue in front of `decide`: see AdmissionQueue

    def seconds_until_free(self, worker: WorkerLike | None = None, has_more: bool = False) -> float:
        """Seconds until a worker, or the one that is given, should get one more request: 0 is now,
        inf is not before load falls. See AdmissionConfig.hold and queue_threshold. A hold is for
        those who have a choice: for one worker alone it is 0. A cap on requests is for all.
        `has_more`: only for how long a tenant that has more than its share leaves it to others."""
        if self._plain is not None and worker is None and not has_more:
            if (seconds := self._plain.seconds_until_free()) >= 0:
                return seconds
        with self._lock:
            if not (worker is None or has_more or self.limits.caps) and self.limits.policy_holds:
                return 0.0
            eligible = self.registry.eligible(now := self._expire())
            if worker is not None:
                eligible = eligible & self._source.mask([as_worker(worker)])
            return self.limits.seconds_until_free(eligible, now, worker is None, has_more)

    @property
    def takes_any(self) -> bool:
        """Whether a worker is here that is not busy: without one, requests are refused at once."""
        with self._lock:
            eligible, limits = self.registry.eligible(self._expire()), self.limits
            return bool((eligible & ~limits.busy() if limits.any_busy else eligible).any())

    def wait_times(self) -> Callable[[WorkerLike | None], float]:
        """`seconds_until_free` of any worker, as of now; what they have in common is found once."""
        with self._lock:
            eligible, limits = self.registry.eligible(now := self._expire()), self.limits
            free_s = limits.seconds_until_free(eligible, now)
            return self._source.wait_times(free_s, limits.waiting(eligible, now))

    def uncached_tokens(self, token_ids: Tokens, **content: Unpack[ContentFields]) -> int:
        """Prompt tokens that even the worker with the longest overlap would have to compute."""
        prompt = prompt_of(token_ids, self.block_size, content).hashed()
        with self._lock:
            return self._source.uncached_tokens(prompt, self.config, self.clock.now())

    def queue_terms(self, token_ids: Tokens, **content: Unpack[ContentFields]) -> tuple[int, float]:
        """What its turn in the admission queue goes by: (uncached tokens, order penalty in s)."""
        if not self.limits.orders_by_tokens:
            return 1, 0.0
        tokens = self.uncached_tokens(token_ids, **content)
        with self._lock:
            return tokens, self.limits.order_penalty_s(tokens)

    # Requests in flight

    def mark_prefill_complete(self, request_id: str, *, cached_tokens: int | None = None) -> bool:
        """The first token is out. False if the request is not booked, which is no error.
        `cached_tokens`: prompt tokens that the engine says it found cached, where it does."""
        with self._lock:
            now = self.clock.now()
            if request_id in (source := self._source).watched or source.has_peers:
                source.on_first_token(request_id, now)
            if cached_tokens is not None:
                self._learner.on_cached(request_id, cached_tokens)
            self._learner.on_first_token(request_id, now)
            return self.slots.mark_prefill_completed(request_id, cached_tokens)

    def release_prefill(self, request_id: str) -> bool:
        """Count the prompt as computed, though no token says so. False if it is not booked."""
        with self._lock:
            return self.slots.mark_prefill_completed(request_id)

    def add_output_tokens(self, request_id: str, generated: int) -> None:
        """`generated` tokens are out in all. Counts where output blocks are tracked."""
        if self.config.router_track_output_blocks:
            with self._lock:
                self.slots.add_output_tokens(request_id, generated)

    def touch_all(self, request_ids: Iterable[str]) -> None:
        with self._lock:
            self.slots.touch_all(request_ids, self.clock.now())

    def touch(self, request_id: str) -> bool:
        """The request is alive: it expires `active_request_expiry_secs` from now."""
        with self._lock:
            return self.slots.touch(request_id, self.clock.now())

    def free(self, request_id: str, *, output_tokens: int | None = None) -> bool:
        """The request ended, however it did. False if it is not booked, which is no error.
        `output_tokens`, where they were counted, show a policy how long a token takes."""
        with self._lock:
            try:
                self._learner.on_end(request_id, now := self.clock.now(), output_tokens)
                self.limits.tenants.on_ends((request_id,), now)
            finally:  # whatever fails of what learns from it
                known = self.slots.free(request_id, output_tokens)
            return known

    def forget_predictions(self, worker_id: int) -> None:
        """Forget what was predicted of a worker's cache, as the engine has emptied it. What its
        events reported stays: events report that too. Nothing if there is no such worker."""
        with self._lock:
            entry = self.registry.entry(worker_id)
            for rank in () if entry is None else entry.ranks:
                self.index.forget_predictions(rank, self.registry.number(rank))

    def _side(self, placement: Placement) -> "Side":
        """The workers that a leg of a request may go to; NoWorkersError if there are none."""
        from .pairs import Side

        source, limits, policy, now = self._source, self.limits, self._policy, self._expire()
        candidates = source.candidates(
            placement.prompt, self.config, now, with_caches=policy.needs_overlaps
        )
        if placement.request_id:  # else it is a leg whose request is judged at the other one
            candidates.bound = limits.shed_bound(
                placement.prompt.isl, placement.objectives, 0.0, placement.tenant, now
            )
        pinned, preferred = wanted_by(placement, self.sessions)
        wanted = source.preferred(preferred, self.config)
        if placement.computed is not None:
            wanted = source.count_computed(placement.computed, candidates) or wanted
        number = source.pin(pinned, candidates)
        takers = candidates.eligible
        if placement.excluded:
            source.exclude(placement.excluded, candidates, even_inhibited=placement.retried)
        eligible = candidates.eligible
        if placement.allowed:
            eligible = eligible & source.mask(placement.allowed)
        if number is not None:
            eligible = eligible & (np.arange(len(eligible)) == number)
        if not eligible.any():
            raise NoWorkersError("no worker that the request may go to takes requests now")
        if limits.any_busy and (busy := limits.busy_of(takers, now)) is not None:
            if not (eligible := eligible & ~busy).any():
                raise all_busy(policy, takers, now)
        avoided = limits.avoided(takers) if self.registry.is_weighted or limits.caps else None
        if avoided is not None and (others := eligible & ~avoided).any():
            eligible = others
        candidates.eligible = eligible
        return Side(candidates, policy, self._rng, self.registry, wanted)

    def _require_free(self, request_id: str | None) -> None:
        if request_id is not None and self.slots.worker_of(request_id) is not None:
            raise InvalidRequestError(f"request id {request_id!r} is in use", field="request_id")

    def _book(
        self,
        request_id: str | None,
        number: int,
        candidates: Candidates,
        prompt: Prompt,
        takers: Mask,
        config: KvRouterConfig,
        expected_output_tokens: int | None,
        tenant: str,
        owner: str | None,
        is_expected: bool = False,
    ) -> Decision:
        """The decision for a worker, booked there if it has an id. `takers` might have had it too.
        `is_expected`: another worker computes its prompt before it comes."""
        decision = decision_of(candidates, number, self.registry.worker(number), request_id)
        if request_id is None:
            return decision
        saved, limits = candidates.saved_prefill_blocks, self.limits
        booked = self.slots.add_request(
            request_id, number, candidates.sequence_hashes, isl=prompt.isl,
            overlap_blocks=0 if saved is None else int(saved[number]), now=candidates.now,
            expected_output_tokens=expected_output_tokens, owner=owner,
            track_prefill=config.router_track_prefill_tokens and not is_expected,
        )  # fmt: skip
        try:
            if not booked:
                decision = replace(decision, request_id=None)
            elif is_expected:
                self._learner.on_expected(request_id, number, candidates)
            else:
                self._learner.on_booked(request_id, number, candidates)
            if booked and (self.registry.is_weighted or tenant or limits.tenants.enabled):
                limits.on_given(request_id, number, takers, tenant, candidates)
            if candidates.overlaps is not None:
                self._source.on_booked(request_id, decision.worker, prompt, candidates.now)
        except BaseException:
            self.free(request_id)  # the caller does not know of the booking
            raise
        return decision

    def _expire(self) -> float:
        """Drop what is too old; the time at which that was done. Under the lock."""
        now = self.clock.now()
        if now >= self._source.expire_at:
            for request_id in self._source.expire(now):
                self.limits.tenants.on_ends((request_id,), now)
                self._learner.on_end(request_id, now, None)
        return now

    def _on_add(self, worker: WorkerWithDpRank, number: int) -> None:
        with self._lock:
            self.slots.add_worker(number)
            self.limits.shares.on_worker(number)
            self.index.bind(worker, number)

    def _on_remove(self, worker: WorkerWithDpRank, number: int) -> None:
        with self._lock:
            dropped = self.slots.remove_worker(number)
            self.limits.tenants.on_ends(dropped, self.clock.now())
            if self._dropped is not None:
                self._dropped += dropped
            self.index.unbind(worker)
            self._source.on_worker_gone(number)
            self._learner.on_worker_gone(number)

    def _on_update(self, entry: WorkerEntry) -> None:
        with self._lock:
            self._source.on_worker(entry, self._learner)
