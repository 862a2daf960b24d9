"""What a mirror makes of an engine's events: known hashes, whole chains, never too much."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kv_events import engine_events
from support.kv_events.engine_events import CLEARED

from dynamo_router.engines.adapters import CacheMirror
from dynamo_router.engines.serving import BlocksRemoved, BlocksStored, CacheCleared
from dynamo_router.indexer.hashing import block_hashes
from dynamo_router.kv_events.dialects import EventsRefused

SIZE = 4
Events = list[dict[str, Any]]


def stored(*hashes: int, parent: int | None = None, first: int = 0, **more: Any) -> Events:
    """Blocks with these ids, of tokens from `first` on."""
    tokens = list(range(first, first + SIZE * len(hashes)))
    return [engine_events.stored(list(hashes), tokens, SIZE, parent, **more)]


def removed(*hashes: int, **more: Any) -> Events:
    return [engine_events.removed(*hashes, **more)]


def ids(mirror: CacheMirror, tier: Any = "device") -> list[int]:
    return [block.block_hash for block in mirror.cached_blocks(0, tier)]


def test_blocks_have_the_engines_ids_and_the_hashes_of_their_tokens() -> None:
    mirror = CacheMirror(SIZE)
    (change,) = mirror.apply(0, stored(-1, 7))
    assert isinstance(change, BlocksStored)
    assert change.block_hashes == [2**64 - 1, 7] and change.parent_hash is None
    assert change.local_hashes == block_hashes(np.arange(8, dtype=np.uint32), SIZE).tolist()
    assert change.blocks[1].parent_hash == 2**64 - 1
    (salted,) = mirror.apply(0, stored(8, first=0, cache_salt="s"))
    assert isinstance(salted, BlocksStored)
    expected = block_hashes(np.arange(4, dtype=np.uint32), SIZE, cache_namespace="s")
    assert salted.local_hashes == expected.tolist()


def test_what_is_told_again_changes_nothing() -> None:
    mirror = CacheMirror(SIZE)
    mirror.apply(0, stored(1, 2))
    assert mirror.apply(0, stored(1, 2)) == []
    (more,) = mirror.apply(0, stored(1, 2, 3))
    assert isinstance(more, BlocksStored) and more.block_hashes == [3] and more.parent_hash == 2


def test_a_chain_ends_before_a_block_that_is_not_full_and_one_of_an_image() -> None:
    mirror = CacheMirror(SIZE)
    (event,) = stored(1, 2)
    mirror.apply(0, [{**event, "token_ids": event["token_ids"][:-2]}])
    assert ids(mirror) == [1]
    mirror.apply(0, stored(4, 5, first=50, extra_keys=[None, [["image", 0]]]))
    assert ids(mirror) == [1, 4]
    assert mirror.apply(0, removed(2, 5)) == []


def test_blocks_behind_an_unknown_one_are_counted_and_left_out() -> None:
    mirror = CacheMirror(SIZE)
    assert mirror.apply(0, stored(2, parent=1)) == []
    assert ids(mirror) == []


def test_blocks_that_nothing_leads_to_are_not_announced_until_it_is_back() -> None:
    mirror = CacheMirror(SIZE)
    mirror.apply(0, stored(1, 2, 3))
    mirror.apply(0, removed(1))
    assert ids(mirror) == []
    mirror.apply(0, stored(1))
    assert ids(mirror) == [1, 2, 3]


def test_tiers_and_ranks_are_kept_apart_and_a_parent_may_be_in_another_tier() -> None:
    mirror = CacheMirror(SIZE, dp_size=2)
    mirror.apply(0, stored(1))
    (change,) = mirror.apply(0, stored(2, parent=1, first=4, medium="CPU"))
    assert isinstance(change, BlocksStored) and change.tier == "host_pinned"
    assert ids(mirror) == [1] and ids(mirror, "host_pinned") == [2]
    assert mirror.apply(0, removed(1, medium="CPU")) == []
    assert mirror.apply(0, removed(2, medium="CPU")) == [BlocksRemoved([2], "host_pinned")]
    assert mirror.apply(0, stored(9, medium="SHARED")) == []
    assert mirror.cached_blocks(1, "device") == []
    assert mirror.apply(0, [CLEARED]) == [CacheCleared()]
    assert mirror.apply(0, [CLEARED]) == [] and ids(mirror) == []


def test_blocks_of_another_size_and_ranks_that_there_are_not_are_refused() -> None:
    with pytest.raises(EventsRefused, match="blocks of 4 tokens, the engine reported 2"):
        CacheMirror(2).apply(0, stored(1))
    with pytest.raises(EventsRefused, match="rank 1"):
        CacheMirror(SIZE).apply(1, [])


def test_a_chain_has_the_salt_that_its_first_block_names() -> None:
    mirror = CacheMirror(SIZE)
    mirror.apply(0, stored(1, extra_keys=[["salt"]]))
    (change,) = mirror.apply(0, stored(2, parent=1, first=4))
    assert isinstance(change, BlocksStored) and change.blocks[0].cache_namespace == "salt"
    (plain,) = mirror.apply(0, stored(3, lora_name="a", extra_keys=[["a"]]))
    assert isinstance(plain, BlocksStored) and plain.blocks[0].cache_namespace is None


def test_other_groups_and_shared_pools_are_left_out() -> None:
    mirror = CacheMirror(SIZE)
    assert mirror.apply(0, stored(1, kv_cache_spec_kind="mamba")) == []
    assert mirror.apply(0, stored(1, locality="REMOTE")) == []
    assert mirror.apply(0, [{"type": "Other"}]) == []


@given(st.lists(st.tuples(st.sampled_from("srrc"), st.integers(0, 14)), max_size=60))
def test_the_mirror_never_says_more_than_the_engine_holds(steps: list[tuple[str, int]]) -> None:
    """Blocks are a binary tree: the parent of n is (n - 1) // 2. Whatever is dropped, changes and
    the whole agree, and the whole is what can be reached of what the engine has."""
    mirror, held, told = CacheMirror(SIZE), set[int](), set[int]()
    for kind, block in steps:
        parent = (block - 1) // 2 if block else None
        if kind == "s" and (parent is None or parent in held):
            held.add(block)
            batch = stored(block, parent=parent, first=SIZE * block)
        elif kind == "r":
            held.discard(block)
            batch = removed(block)
        elif kind == "c" and block < 2:
            held.clear()
            batch = [CLEARED]
        else:
            continue
        for change in mirror.apply(0, batch):
            if isinstance(change, BlocksStored):
                told |= set(change.block_hashes)
            elif isinstance(change, BlocksRemoved):
                told -= set(change.block_hashes)
            else:
                told.clear()
        assert told == held
        known: list[int] = ids(mirror)
        assert all(b == 0 or (b - 1) // 2 in known[: known.index(b)] for b in known)
        reached = {b for b in held if all(p in held for p in ancestors(b))}
        assert set(known) == reached and len(known) == len(reached)


def ancestors(block: int) -> list[int]:
    found = []
    while block:
        block = (block - 1) // 2
        found.append(block)
    return found
