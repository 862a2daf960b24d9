"""What the mock engine's cache keeps, shares, evicts and says of it."""

from support.mock_requests import request

from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.engine import MockEngine
from dynamo_router.engines.serving.kv_events import BlocksRemoved, BlocksStored, KvEvent


def engine(blocks: int) -> MockEngine:
    return MockEngine(EngineConfig(block_size=4, num_gpu_blocks=blocks))


def serve(engine: MockEngine, *prompts: list[int], max_tokens: int = 1) -> list[KvEvent]:
    """Run the prompts side by side to their ends; what the cache said."""
    for number, prompt in enumerate(prompts):
        engine.submit(request(str(number), prompt, max_tokens))
    events = []
    while engine.has_work:
        events += engine.step().events
    return events


def test_the_least_recently_used_leaf_goes_first_and_the_event_says_so():
    small = engine(4)
    (first,) = serve(small, [*range(12)])
    assert isinstance(first, BlocksStored) and first.parent_hash is None
    removed, stored = serve(small, [*range(50, 58)])
    assert removed == BlocksRemoved(first.block_hashes[2:])
    assert isinstance(stored, BlocksStored)
    assert (stored.parent_hash, len(stored.block_hashes)) == (None, 2)
    removed, _ = serve(small, [*range(70, 78)])
    # The older prompt from its end, not from its beginning, and before the younger one.
    assert removed == BlocksRemoved(first.block_hashes[:2][::-1])


def test_a_block_that_is_used_again_is_the_last_to_leave():
    small = engine(3)
    old = serve(small, [*range(4)])[0]
    young = serve(small, [*range(10, 14)])[0]
    assert isinstance(old, BlocksStored) and isinstance(young, BlocksStored)
    assert serve(small, [*range(4), 99]) == [], "cached, and one partial block beside it"
    removed = serve(small, [*range(20, 28)])[0]
    assert removed == BlocksRemoved(young.block_hashes)


def test_stored_blocks_follow_the_block_that_was_there():
    roomy = engine(32)
    (first,) = serve(roomy, [*range(12)])
    (second,) = serve(roomy, [*range(8), *range(90, 98)])
    assert isinstance(first, BlocksStored) and isinstance(second, BlocksStored)
    assert second.parent_hash == first.block_hashes[1]
    assert len(second.block_hashes) == 2


def test_a_partial_block_is_announced_when_it_becomes_full_and_only_then():
    roomy = engine(32)
    roomy.submit(request("a", range(6), 4))
    assert [len(event.blocks) for event in roomy.step().events] == [1]
    assert (roomy.active_blocks, roomy.inactive_blocks) == (2, 0)
    assert roomy.step().events == []
    (stored,) = roomy.step().events
    assert isinstance(stored, BlocksStored) and len(stored.blocks) == 1
    assert roomy.active_blocks == 2, "the same block, now full"


def test_equal_requests_share_blocks_and_a_promoted_block_that_is_cached_frees_its_room():
    roomy = engine(32)
    stored = []
    for number in range(2):
        roomy.submit(request(str(number), range(6), 4))
    most = 0
    while roomy.has_work:
        stored += [block.block_hash for event in roomy.step().events for block in event.blocks]
        most = max(most, roomy.active_blocks)
    assert len(stored) == len(set(stored)) == 2
    assert most == 3, "one full block that both hold, and a partial one each"
    assert (roomy.active_blocks, roomy.inactive_blocks) == (0, 2)


def test_an_aborted_request_gives_back_its_blocks_but_they_stay_cached():
    roomy = engine(32)
    roomy.submit(request("a", range(10), 5))
    roomy.step()
    assert sorted(roomy.holders().values()) == [1, 1]
    assert roomy.abort("a")
    assert (roomy.active_blocks, roomy.inactive_blocks) == (0, 2)
    assert sorted(roomy.holders().values()) == [0, 0]
    sequence = roomy.submit(request("a", range(10), 1))
    roomy.step()
    assert sequence.cached_tokens == 8
