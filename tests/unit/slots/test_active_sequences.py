"""One worker's active sequences, under Dynamo's names."""

import numpy as np
import pytest

from dynamo_router.slots.sequences import ActiveSequences


def test_the_life_of_two_requests_with_a_common_prefix():
    active = ActiveSequences(block_size=4)
    active.add_request("a", [1, 2, 3], isl=12, overlap=0, now=0.0)
    assert (active.active_blocks, active.active_tokens) == (3, 12)
    assert active.new_blocks([1, 2, 7, 8]) == 2
    assert active.potential_blocks([1, 2, 7, 8]) == 5
    assert active.potential_blocks_and_tokens([1, 2, 7, 8], 16, 2) == (5, 12 + 8)

    active.add_request("b", np.array([1, 2, 7, 8], dtype=np.uint64), isl=16, overlap=2, now=0.0)
    assert (active.active_blocks, active.active_tokens) == (5, 20)
    active.mark_prefill_completed("a")
    assert active.active_tokens == 8
    assert active.free("a") == 4
    assert active.free("b") == 0
    assert (active.active_tokens, len(active)) == (0, 0)


def test_a_request_without_blocks_counts_its_tokens():
    active = ActiveSequences(block_size=4)
    active.add_request("a", None, isl=10, overlap=1, now=0.0)
    assert (active.active_blocks, active.active_tokens) == (0, 6)
    assert active.potential_blocks_and_tokens(None, 5, 0) == (0, 11)


def test_duplicates_and_overlong_overlaps_are_counted():
    active = ActiveSequences(block_size=4)
    active.add_request("a", [1], isl=4, overlap=3, now=0.0)
    active.add_request("a", [2, 3], isl=4, overlap=0, now=0.0)
    assert (active.duplicates, active.overlaps_clamped) == (1, 1)
    assert (active.active_blocks, active.active_tokens) == (1, 0)


def test_a_booking_first_drops_what_has_expired():
    active = ActiveSequences(block_size=4, expiry_s=300.0)
    active.add_request("a", [1], isl=4, overlap=0, now=0.0)
    assert active.add_request("b", [2], isl=4, overlap=0, now=200.0) == []
    assert active.add_request("a", [1, 3], isl=8, overlap=0, now=301.0) == ["a"]
    assert (active.active_blocks, len(active)) == (3, 2)
    assert active.force_expiry(502.0) == ["b"]
    assert "a" in active and "b" not in active


def test_output_blocks_fade():
    active = ActiveSequences(block_size=4)
    active.add_request("a", [1, 2], 8, 0, expected_output_tokens=8, now=0.0)
    assert active.add_output_tokens("a", 4) is True
    assert active.active_blocks == 2  # three halves, rounded


def test_hashes_that_are_no_u64_are_refused():
    active = ActiveSequences(block_size=4)
    with pytest.raises(OverflowError):
        active.add_request("a", [-1], isl=4, overlap=0, now=0.0)
    with pytest.raises(OverflowError):
        active.new_blocks([2**64])
