"""The mock engine's cache: pools, signals and events, against the obvious reference."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mock_requests import apply, sequence
from oracle_cache import PlainCache

from dynamo_router.workers.mocker.evictor import LruEvictor
from dynamo_router.workers.mocker.kv_events import BlocksRemoved, BlocksStored
from dynamo_router.workers.mocker.kv_manager import KvManager

CAPACITY = 7
# Four-token blocks; the prompts share prefixes of one, two and three blocks.
PROMPTS = [
    [*range(4), *range(10, 14), *range(20, 24), *range(30, 34)],
    [*range(4), *range(10, 14), *range(20, 24), *range(40, 44), *range(50, 54)],
    [*range(4), *range(10, 14), *range(60, 64)],
    [*range(4), *range(70, 74), *range(80, 84)],
    [*range(90, 98)],
]


class Holder:
    """A request as the scheduler treats it: a prefix held, perhaps a partial block behind it."""

    def __init__(self, prompt: int) -> None:
        self.sequence = sequence(PROMPTS[prompt])
        self.held = 0
        self.partial: int | None = None

    @property
    def blocks(self) -> list[int]:
        return self.sequence.hashes[: self.held]

    @property
    def length(self) -> int:
        return len(self.sequence.hashes)


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kv = KvManager(CAPACITY)
        self.plain = PlainCache(CAPACITY)
        self.replayed: set[int] = set()
        self.holders: list[Holder] = []

    def name(self, partial: int | None) -> str:
        return f"partial {partial}"

    @rule(prompt=st.integers(0, len(PROMPTS) - 1), data=st.data())
    def use_more(self, prompt, data):
        """A new request, or one that is here, takes its next blocks."""
        free = [h for h in self.holders if h.partial is None and h.held < h.length]
        holder = data.draw(st.sampled_from([Holder(prompt), *free]))
        last = data.draw(st.integers(holder.held + 1, holder.length))
        wanted = holder.sequence.hashes[holder.held : last]
        took = self.kv.use(holder.sequence, holder.held, last)
        assert took == self.plain.use(wanted)
        if took:
            holder.held = last
            if holder not in self.holders:
                self.holders.append(holder)

    @precondition(lambda self: any(h.partial is None and h.held < h.length for h in self.holders))
    @rule(data=st.data())
    def use_partial(self, data):
        free = [h for h in self.holders if h.partial is None and h.held < h.length]
        holder = data.draw(st.sampled_from(free))
        partial = self.kv.use_partial()
        took = self.plain.use([self.name(partial)]) if partial is not None else False
        assert took == (partial is not None)
        if partial is None:
            assert not self.plain.use(["one more"])
        holder.partial = partial

    @precondition(lambda self: any(h.partial is not None for h in self.holders))
    @rule(data=st.data())
    def promote(self, data):
        holder = data.draw(st.sampled_from([h for h in self.holders if h.partial is not None]))
        self.kv.promote(holder.partial, holder.sequence, holder.held)
        self.plain.promote(self.name(holder.partial), holder.sequence.hashes[holder.held])
        holder.partial = None
        holder.held += 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data):
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        if holder.partial is not None:
            self.kv.destroy(holder.partial)
            self.plain.destroy(self.name(holder.partial))
        self.kv.deref(holder.sequence, holder.held)
        self.plain.deref(holder.blocks)

    @invariant()
    def agrees(self):
        self.kv.check_integrity()
        assert self.kv.active_blocks == len(self.plain.active)
        assert self.kv.inactive_blocks == len(self.plain.unused)
        assert {b.block_hash for b in self.kv.cached_blocks()} == self.plain.cached
        apply(self.replayed, self.kv.take_events())
        assert self.replayed == self.plain.cached
        for prompt in range(len(PROMPTS)):
            hashes = sequence(PROMPTS[prompt]).hashes
            held = [h in self.plain.cached for h in hashes] + [False]
            assert self.kv.match(hashes, len(hashes)) == held.index(False)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_the_least_recently_used_leaf_goes_first_and_the_event_says_so():
    kv = KvManager(4)
    first, second = sequence(PROMPTS[3]), sequence(PROMPTS[4])
    assert kv.use(first, 0, 3)
    kv.deref(first, 3)
    kv.take_events()
    assert kv.use(second, 0, 2)
    removed, stored = kv.take_events()
    assert removed == BlocksRemoved([first.hashes[2]])
    assert isinstance(stored, BlocksStored)
    assert (stored.parent_hash, stored.block_hashes) == (None, second.hashes)
    assert stored.local_hashes == second.local_hashes


def test_stored_blocks_follow_the_block_that_was_there():
    kv = KvManager(8)
    assert kv.use(sequence(PROMPTS[0]), 0, 3)
    longer = sequence(PROMPTS[1])
    kv.take_events()
    assert kv.use(longer, 0, 5)
    (stored,) = kv.take_events()
    assert stored.parent_hash == longer.hashes[2]
    assert stored.block_hashes == longer.hashes[3:]


def test_use_takes_all_or_nothing():
    kv = KvManager(4)
    assert kv.use(sequence(PROMPTS[0]), 0, 4)
    kv.take_events()
    other = sequence(PROMPTS[1])
    assert not kv.use(other, 0, 5)
    assert kv.take_events() == []
    assert kv.active_blocks == 4
    kv.deref(sequence(PROMPTS[0]), 4)
    assert kv.inactive_blocks == 4, "a failed use left a holder behind"


def test_a_promoted_block_that_is_cached_already_frees_its_room():
    kv = KvManager(4)
    one, two = sequence(PROMPTS[4]), sequence(PROMPTS[4])
    assert kv.use(one, 0, 2)
    assert kv.use(two, 0, 1)
    partial = kv.use_partial()
    assert partial is not None and kv.active_blocks == 3
    kv.take_events()
    kv.promote(partial, two, 1)
    assert kv.active_blocks == 2
    assert kv.take_events() == [], "nothing new is cached"


@pytest.mark.parametrize("front", [False, True])
def test_evictor_keeps_a_strict_order(front):
    evictor = LruEvictor()
    for block in (1, 2, 3):
        evictor.insert(block)
    evictor.insert(1)
    if front:
        evictor.push_front(3)
    assert list(evictor) == ([3, 2, 1] if front else [2, 3, 1])
    assert evictor.discard(2) and not evictor.discard(2)
    assert [evictor.evict() for _ in range(len(evictor))] == ([3, 1] if front else [3, 1])
    with pytest.raises(KeyError):
        evictor.evict()
