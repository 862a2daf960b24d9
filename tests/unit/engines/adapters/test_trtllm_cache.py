"""TensorRT-LLM's events as its LLM API gives them: what they store and remove, gaps, refusals.

Shapes of events: `KVCacheEventSerializer` of TensorRT-LLM 1.0 to 1.3.
"""

from typing import Any

from dynamo_router.engines.adapters.trtllm_cache import TrtllmCache
from dynamo_router.engines.serving import BlocksRemoved, BlocksStored, CacheCleared

CREATED = {
    "event_id": 0,
    "window_size": 4096,
    "data": {"type": "created", "num_blocks_per_cache_level": [101230, 0]},
}
FIRST, SECOND = 17831341519058834317, 11197498242826443880


def block(block_hash: Any, first: int, size: int = 32, **more: Any) -> dict[str, Any]:
    tokens = [
        {"type": "unique_token", "token_id": token, "token_extra_id": 0}
        for token in range(first, first + size)
    ]
    return {
        "type": "stored_block",
        "block_hash": block_hash,
        "cache_level": 0,
        "priority": 35,
        "mm_keys": [],
        "cache_salt": None,
        "tokens": tokens,
    } | more


def stored(number: int, *blocks: Any, parent: int | None = None, **more: Any) -> dict[str, Any]:
    data = {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}
    return {"event_id": number, "window_size": 4096, "attention_dp_rank": 0, "data": data} | more


def removed(number: int, *hashes: int) -> dict[str, Any]:
    data = {"type": "removed", "block_hashes": list(hashes)}
    return {"event_id": number, "window_size": 4096, "data": data}


def hashes(cache: TrtllmCache, rank: int = 0) -> list[int]:
    return [each.block_hash for each in cache.mirror.cached_blocks(rank, "device")]


def test_a_prompt_is_stored_and_removed() -> None:
    cache = TrtllmCache(32)
    partial = block(5, 65, 7)
    changes = cache.take([CREATED, stored(1, block(FIRST, 1), block(SECOND, 33), partial), {}])
    ((rank, (change,)),) = changes
    assert rank == 0 and isinstance(change, BlocksStored)
    assert change.block_hashes == [FIRST, SECOND] and cache.total_blocks == 101230
    assert cache.take([removed(2, 5)]) == []
    assert cache.take([removed(3, SECOND)]) == [(0, [BlocksRemoved([SECOND])])]
    assert hashes(cache) == [FIRST]


def test_a_block_that_goes_to_host_memory_is_gone() -> None:
    cache = TrtllmCache(32)
    cache.take([CREATED, stored(1, block(FIRST, 1))])
    data = {
        "type": "updated",
        "block_hash": FIRST,
        "cache_level": {"type": "event_diff", "old_value": 0, "new_value": 1},
        "priority": None,
    }
    assert cache.take([{"event_id": 2, "data": data}]) == [(0, [BlocksRemoved([FIRST])])]


def test_events_of_smaller_windows_count_and_say_nothing() -> None:
    cache = TrtllmCache(32)
    other = stored(1, block(7, 1), window_size=512)
    assert cache.take([CREATED, other, stored(2, block(FIRST, 1))])[0][0] == 0
    assert hashes(cache) == [FIRST] and cache.gaps == 0


def test_after_a_gap_nothing_is_claimed_that_may_be_gone() -> None:
    cache = TrtllmCache(32)
    cache.take([CREATED, stored(1, block(FIRST, 1), block(SECOND, 33))])
    (gone, _) = cache.take([stored(4, block(9, 900)), stored(5, block(10, 65), parent=SECOND)])
    assert gone == (0, [CacheCleared()]) and cache.gaps == 1
    assert hashes(cache) == [9]


def test_ranks_have_numbers_and_caches_of_their_own() -> None:
    cache = TrtllmCache(32, dp_size=2)
    second = stored(1, block(FIRST, 1), attention_dp_rank=1)
    changes = cache.take([CREATED, CREATED | {"attention_dp_rank": 1}, second])
    assert [rank for rank, _ in changes] == [1] and cache.gaps == 0
    assert hashes(cache) == [] and hashes(cache, 1) == [FIRST]


def test_events_that_no_index_can_take_are_refused_once_and_for_all() -> None:
    for odd in (
        stored(2, block("9f86d0", 33)),  # of an algorithm whose hashes are no numbers
        stored(2, block(6, 33, 64)),  # larger than its blocks are said to be
        stored(2, block(6, 33), attention_dp_rank=3),
        {"event_id": 2, "data": {"type": "stored"}},
    ):
        cache = TrtllmCache(32)
        cache.take([CREATED, stored(1, block(FIRST, 1))])
        assert (0, [CacheCleared()]) in cache.take([odd, stored(3, block(8, 65))])
        assert cache.refused and cache.take([stored(4, block(8, 97))]) == []
        assert hashes(cache) == []
