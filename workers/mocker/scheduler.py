"""Scheduler: which tokens the next step computes, for one waiting and one running queue.

A step has one token budget. Running requests come first, oldest first, one token for a decode,
the rest of the prompt for a prefill; what is left admits waiting requests in order. Without room
for a running request the youngest one is preempted: it loses its blocks, goes to the head of the
waiting queue, and computes its tokens again later.

No livelock: a request that does not fit the whole cache is never taken in (the engine checks),
so the oldest running one, which alone is never preempted for another, moves on in every step.
"""

from collections import deque
from dataclasses import dataclass

from .config import EngineConfig
from .kv_manager import KvManager
from .sequence import Sequence


@dataclass(slots=True)
class Schedule:
    """What one step computes."""

    prefill_tokens: int  # computed again after a preemption included
    decodes: int  # requests that compute one token and had a token before
    decode_tokens: int  # how long those are together, a shared prefix counting for each
    ready: list[Sequence]  # requests that have all their tokens computed: each gets its next token
    preempted: list[Sequence]


class Scheduler:
    """The two queues over one KvManager."""

    def __init__(self, config: EngineConfig, kv: KvManager) -> None:
        self._kv = kv
        self._block_size = config.block_size
        self._max_num_seqs = config.max_num_seqs
        self._budget = config.max_num_batched_tokens
        self._chunked = config.enable_chunked_prefill
        self._admission_limit = int((1 - config.watermark) * kv.capacity)
        self.running: list[Sequence] = []  # in order of admission
        self.waiting: deque[Sequence] = deque()

    def add(self, sequence: Sequence) -> None:
        """Queue a new request."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a request and let go of its blocks, wherever it stands."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.waiting.remove(sequence)

    def retire(self, finished: list[Sequence]) -> None:
        """Take out running requests that have all their tokens, blocks and all."""
        self.running = [sequence for sequence in self.running if not sequence.finished]
        for sequence in finished:
            self._release(sequence)

    def schedule(self) -> Schedule:
        """Plan a step and move the counters of the requests in it."""
        plan = Schedule(0, 0, 0, [], [])
        budget = self._run_running(plan, self._budget)
        if not plan.preempted:
            self._admit(plan, budget)
        return plan

    def _run_running(self, plan: Schedule, budget: int) -> int:
        """Spend the budget on running requests; what is left of it."""
        running, ready = self.running, plan.ready
        position = 0
        while position < len(running) and budget > 0:
            sequence = running[position]
            position += 1
            wanted = sequence.known - sequence.computed
            if wanted == 1 and sequence.slack:  # by far the most frequent case
                sequence.slack -= 1
                sequence.computed += 1
            else:
                wanted = min(wanted, budget)
                if not self._grow_or_preempt(sequence, wanted, plan):
                    break  # it was the youngest itself, and is preempted
            if wanted == 1 and sequence.generated:
                plan.decodes += 1
                plan.decode_tokens += sequence.known
            else:
                plan.prefill_tokens += wanted
            budget -= wanted
            if sequence.computed == sequence.known:
                ready.append(sequence)
        return budget

    def _grow_or_preempt(self, sequence: Sequence, tokens: int, plan: Schedule) -> bool:
        while not self._grow(sequence, tokens, self._kv.capacity):
            victim = self.running.pop()
            self._release(victim)
            victim.computed = 0
            victim.preemptions += 1
            self.waiting.appendleft(victim)
            plan.preempted.append(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self, plan: Schedule, budget: int) -> None:
        """Take in waiting requests while the budget lasts; the first that does not fit stops it."""
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            # The last known token is computed in any case: its result is the next token.
            reusable = (sequence.known - 1) // self._block_size
            cached = self._kv.match(sequence.hashes, reusable) * self._block_size
            wanted = sequence.known - cached
            if wanted > budget and not self._chunked:
                return
            wanted = min(wanted, budget)
            limit = self._admission_limit if self.running else self._kv.capacity
            if not self._fits(sequence, limit):
                return
            sequence.computed = cached
            # A part can need a block more than the whole: a partial one, in place of a shared one.
            if not self._grow(sequence, wanted, limit):
                sequence.computed = 0
                return
            self.waiting.popleft()
            self.running.append(sequence)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = cached
            plan.prefill_tokens += wanted
            budget -= wanted
            if sequence.computed == sequence.known:
                plan.ready.append(sequence)

    def _fits(self, sequence: Sequence, limit: int) -> bool:
        """Whether all known tokens of a waiting request have room, not its first chunk alone.

        An engine that admits by the chunk overcommits, and then preempts what it has begun.
        """
        full, rest = divmod(sequence.known, self._block_size)
        needed = self._kv.inactive_among(sequence.hashes, 0, full) + (rest > 0)
        return self._kv.active_blocks + needed <= limit

    def _grow(self, sequence: Sequence, tokens: int, limit: int) -> bool:
        """Get the blocks for `tokens` more; False, nothing done, if above `limit` active ones."""
        kv, size = self._kv, self._block_size
        computed = sequence.computed + tokens
        full, rest = divmod(computed, size)
        partial, first = sequence.partial, sequence.held
        promoted = partial is not None and full > first
        first += promoted
        opened = rest > 0 and (partial is None or promoted)
        needed = kv.inactive_among(sequence.hashes, first, full) + opened
        if kv.active_blocks + needed > limit:
            return False
        if promoted:
            assert partial is not None
            kv.promote(partial, sequence, first - 1)
            sequence.partial = None
        # Both fit: counted above, and promoting takes no room.
        used = kv.use(sequence, first, full)
        assert used
        if opened:
            sequence.partial = kv.use_partial()
        sequence.held = full
        sequence.computed = computed
        sequence.slack = size - rest - 1 if rest else 0
        return True

    def _release(self, sequence: Sequence) -> None:
        if sequence.partial is not None:
            self._kv.destroy(sequence.partial)
            sequence.partial = None
        self._kv.deref(sequence, sequence.held)
        sequence.held = sequence.slack = 0
