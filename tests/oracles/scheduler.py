"""The mock engine's scheduler in plain Python: what the native one is held against.

The rules are told at the head of engines/mocker/_scheduler.pxd.
"""

from collections import deque
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from oracles.kv_manager import KvManager

from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.sequence import Sequence
from dynamo_router.engines.serving.kv_events import CachedBlock
from dynamo_router.workers.retention import Span


@dataclass(eq=False)
class Job:
    """Where the scheduler stands with one request."""

    sequence: Sequence
    block_size: int
    computed: int = 0  # tokens whose keys and values are in the cache
    generated: int = 0
    began_with: int = 0  # tokens it had generated when it was admitted
    held: int = 0  # full blocks held, from the first one on
    partial: int | None = None  # id of the partial block behind them
    cached_tokens: int | None = None
    preemptions: int = 0
    finished: bool = False
    retention: Row[Span] | None = None  # what is to be kept of it
    hashes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.hashes = self.sequence.sequence_hashes.tolist()

    @property
    def known(self) -> int:
        """Tokens that exist: prompt and generated ones."""
        return self.sequence.prompt_len + self.generated

    @property
    def decodes(self) -> bool:
        """Whether it has brought a token since it was admitted."""
        return self.generated > self.began_with

    @property
    def blocks(self) -> int:
        return self.held + (self.partial is not None)

    @property
    def blocks_needed(self) -> int:
        return -(-self.known // self.block_size)

    def cached_block(self, position: int) -> CachedBlock:
        return self.sequence.cached_blocks(position, 1)[0]


@dataclass
class Schedule:
    """What one step computes."""

    prefill: dict[Job, int] = field(default_factory=dict)  # prompt tokens
    decodes: list[Job] = field(default_factory=list)
    preempted: list[Job] = field(default_factory=list)
    attended: dict[Job, int] = field(default_factory=dict)  # by `prefill`: twice the contexts
    attended_spent: int = 0  # by `spent`
    spent: int = 0  # on prompts of requests that were preempted after that
    budget: int = 0  # tokens that are left

    @property
    def prefill_tokens(self) -> int:
        return sum(self.prefill.values()) + self.spent

    @property
    def twice_attended(self) -> int:
        return sum(self.attended.values()) + self.attended_spent

    @property
    def decode_tokens(self) -> int:
        return sum(job.known for job in self.decodes)


class Scheduler:
    """The queues over one KvManager."""

    def __init__(self, config: EngineConfig, kv: KvManager) -> None:
        self._config = config
        self._kv = kv
        self.running: list[Job] = []  # in order of admission
        self.waiting: deque[Job] = deque()

    def remove(self, job: Job) -> None:
        """Forget a request and let go of its blocks, wherever it stands."""
        (self.running if job in self.running else self.waiting).remove(job)
        self.release(job)

    def schedule(self) -> Schedule:
        """Plan a step and move the counters of the requests in it."""
        plan = Schedule(budget=self._config.max_num_batched_tokens)
        if self._config.engine_type == "classic":
            self._admit_to_prefill()
            self._compute_prompts(plan)
            self._decode(plan)
        else:
            self._run_running(plan)
            if not plan.preempted:
                self._admit(plan)
        return plan

    # vllm

    def _run_running(self, plan: Schedule) -> None:
        for job in list(self.running):
            if not plan.budget:
                return
            if job not in self.running:
                continue  # preempted for one before it
            wanted = min(job.known - job.computed, plan.budget)
            if not self._grow_or_preempt(job, wanted, plan):
                continue
            if wanted == 1 and job.generated:
                plan.decodes.append(job)
            else:
                plan.prefill[job] = wanted
                plan.attended[job] = twice_contexts(job.computed, wanted)
            plan.budget -= wanted

    def _admit(self, plan: Schedule) -> None:
        while self.waiting and plan.budget and len(self.running) < self._config.max_num_seqs:
            job = self.waiting[0]
            cached = self._cached_tokens(job)
            wanted = job.known - cached
            if wanted > plan.budget and not self._config.enable_chunked_prefill:
                return
            wanted = min(wanted, plan.budget)
            limit = self._limit()
            full, rest = divmod(job.known, job.block_size)
            needed = self._kv.inactive_among(job.hashes, 0, full) + (rest > 0)
            if self._kv.active_blocks + needed > limit:
                return
            job.computed = cached
            if not self._grow(job, wanted, limit):
                job.computed = 0
                return
            self._start(job)
            if job.cached_tokens is None:
                job.cached_tokens = cached
            plan.prefill[job] = wanted
            plan.attended[job] = twice_contexts(job.computed, wanted)
            plan.budget -= wanted

    # classic

    def _admit_to_prefill(self) -> None:
        config = self._config
        tokens = sum(job.known - job.computed for job in self.running)
        blocks = self._kv.active_blocks
        blocks += sum(job.blocks_needed for job in self.running if not job.blocks)
        while self.waiting and len(self.running) < config.max_num_seqs:
            job = self.waiting[0]
            cached = self._cached_tokens(job)
            own = job.known - cached
            counted = tokens if config.enable_chunked_prefill else tokens + own
            if counted > config.max_num_batched_tokens:
                return
            if blocks + job.blocks_needed > self._limit():
                return
            job.computed = cached
            tokens += own
            blocks += job.blocks_needed
            self._start(job)

    def _compute_prompts(self, plan: Schedule) -> None:
        plan.budget = max(0, plan.budget - sum(job.decodes for job in self.running))
        for job in self.running:
            if job.decodes:
                continue
            if not plan.budget:
                return
            if not job.blocks:
                cached = job.computed = self._cached_tokens(job)
                own = job.known - cached
                if own > plan.budget and not self._config.enable_chunked_prefill:
                    return
                if not self._grow(job, own, self._kv.capacity):
                    return
                job.computed = cached
                if job.cached_tokens is None:
                    job.cached_tokens = cached
            part = min(job.known - job.computed, plan.budget)
            job.computed += part
            plan.spent += part
            plan.attended_spent += twice_contexts(job.computed, part)
            plan.budget -= part
            if job.computed < job.known:
                return

    def _decode(self, plan: Schedule) -> None:
        for job in list(self.running):
            if job not in self.running:
                continue
            if job.computed < job.known:
                if not job.decodes:
                    return
                if not self._grow_or_preempt(job, 1, plan):
                    continue
            plan.decodes.append(job)

    # both

    def _grow_or_preempt(self, job: Job, tokens: int, plan: Schedule) -> bool:
        while not self._grow(job, tokens, self._kv.capacity):
            victim = self._victim(job)
            if victim in plan.decodes:
                plan.decodes.remove(victim)
                plan.budget += 1
            plan.budget += plan.prefill.pop(victim, 0)
            plan.attended.pop(victim, None)
            self.running.remove(victim)
            self.release(victim)
            victim.computed = 0
            victim.preemptions += 1
            self.waiting.appendleft(victim)
            plan.preempted.append(victim)
            if victim is job:
                return False
        return True

    def _victim(self, needy: Job) -> Job:
        if self._config.preempts == "lifo":
            return [job for job in self.running if job.blocks][-1]
        for job in self.running:
            if job.decodes:
                return job
        others = [job for job in self.running if job.blocks and job is not needy]
        return others[-1] if others else needy

    def _limit(self) -> int:
        return self._config.admission_blocks if self.running else self._kv.capacity

    def _start(self, job: Job) -> None:
        self.waiting.popleft()
        job.began_with = job.generated
        self.running.append(job)

    def _cached_tokens(self, job: Job) -> int:
        # The last known token is computed in any case: its result is the next token.
        reusable = (job.known - 1) // job.block_size
        return self._kv.match(job.hashes, reusable) * job.block_size

    def _grow(self, job: Job, tokens: int, limit: int) -> bool:
        """Get the blocks for `tokens` more; False, nothing done, if above `limit` active ones."""
        kv = self._kv
        computed = job.computed + tokens
        full, rest = divmod(computed, job.block_size)
        first = job.held
        promoted = job.partial is not None and full > first
        first += promoted
        opened = rest > 0 and (job.partial is None or promoted)
        needed = kv.inactive_among(job.hashes, first, full) + opened
        if kv.active_blocks + needed > limit:
            return False
        if promoted:
            assert job.partial is not None
            kv.promote(job.partial, job, first - 1)
            job.partial = None
        assert kv.use(job, first, full, job.computed // job.block_size)
        if opened:
            job.partial = kv.use_partial()
            assert job.partial is not None
        job.held = full
        job.computed = computed
        return True

    def release(self, job: Job) -> None:
        if job.partial is not None:
            self._kv.destroy(job.partial)
            job.partial = None
        self._kv.deref(job, job.held, job.retention)
        job.held = 0


def twice_contexts(computed: int, tokens: int) -> int:
    """Twice the contexts of the last `tokens` of `computed` ones, each with half of itself."""
    return sum(2 * position + 1 for position in range(computed - tokens, computed))
