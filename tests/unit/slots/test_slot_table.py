"""What the router relies on in the slot table, case by case."""

import gc

import numpy as np
import pytest

from dynamo_router.slots.table import SlotTable


def hashes(*values):
    return np.array(values, dtype=np.uint64)


def table(workers=2, block_size=4, **options):
    made = SlotTable(block_size, **options)
    for number in range(workers):
        made.add_worker(number)
    return made


def book(slots, request_id, number, blocks=None, *, isl=16, overlap=0, now=0.0, **options):
    return slots.add_request(
        request_id, number, blocks, isl=isl, overlap_blocks=overlap, now=now, **options
    )


def test_a_shared_block_counts_once_on_a_worker_until_its_last_request_is_freed():
    slots = table()
    book(slots, "a", 0, hashes(1, 2, 3))
    book(slots, "b", 0, hashes(1, 2, 4))
    book(slots, "c", 1, hashes(1))
    assert slots.active_blocks().tolist() == [4, 1]
    slots.free("a")
    assert slots.active_blocks().tolist() == [3, 1]
    slots.free("b")
    assert slots.active_blocks().tolist() == [0, 1]


def test_potential_answers_for_all_workers_in_one_call():
    slots = table(workers=3)
    book(slots, "a", 0, hashes(1, 2, 3), isl=12)
    book(slots, "b", 1, hashes(1, 9), isl=9, overlap=1)
    blocks, tokens = slots.potential(hashes(1, 2, 5), 14, np.array([2, 1, 0], dtype=np.uint32))
    assert blocks.tolist() == [3 + 1, 2 + 2, 0 + 3]
    assert tokens.tolist() == [12 + 6, 5 + 10, 0 + 14]
    assert (blocks.dtype, tokens.dtype) == (np.float64, np.int64)


def test_potential_takes_no_blocks_and_no_overlaps():
    slots = table()
    book(slots, "a", 1, hashes(1, 2), isl=8)
    blocks, tokens = slots.potential(None, 5, None)
    assert blocks.tolist() == [0, 2]
    assert tokens.tolist() == [5, 13]


def test_potential_takes_read_only_hashes_and_changes_nothing():
    slots = table()
    prompt = hashes(1, 2)
    prompt.flags.writeable = False
    for _ in range(3):
        blocks, _tokens = slots.potential(prompt, 8, None)
        assert blocks.tolist() == [2, 2]
    assert slots.active_blocks().tolist() == [0, 0]


def test_an_end_of_prefill_and_a_free_take_the_prompt_tokens_once():
    slots = table()
    book(slots, "a", 0, isl=16, overlap=1)
    book(slots, "b", 0, isl=7)
    assert slots.active_prefill_tokens().tolist() == [12 + 7, 0]
    assert slots.mark_prefill_completed("a") is True
    assert slots.mark_prefill_completed("a") is True
    assert slots.active_prefill_tokens().tolist() == [7, 0]
    slots.free("a")
    slots.free("b")
    assert slots.active_prefill_tokens().tolist() == [0, 0]


def test_unknown_request_ids_are_no_error():
    slots = table()
    assert slots.free("nobody") is False
    assert slots.mark_prefill_completed("nobody") is False
    assert slots.add_output_tokens("nobody", 5) is False
    assert slots.touch("nobody", 1.0) is False
    assert slots.worker_of("nobody") is None


def test_a_second_booking_under_one_id_is_ignored_and_counted():
    slots = table()
    assert book(slots, "a", 0, hashes(1)) is True
    assert book(slots, "a", 1, hashes(2, 3)) is False
    assert slots.active_blocks().tolist() == [1, 0]
    assert (slots.duplicates, slots.total_requests, slots.worker_of("a")) == (1, 1, 0)


def test_an_overlap_longer_than_the_prompt_is_clamped():
    slots = table()
    book(slots, "a", 0, isl=6, overlap=2)
    assert slots.active_prefill_tokens()[0] == 0


def test_untracked_prefill_adds_no_tokens():
    slots = table()
    book(slots, "a", 0, isl=6, overlap=9, track_prefill=False)
    assert slots.active_prefill_tokens()[0] == 0


def test_the_bookings_of_a_worker_that_leaves_are_dropped_and_named():
    slots = table()
    for i in range(5):
        book(slots, f"a{i}", 0, hashes(1, 10 + i))
    book(slots, "b", 1, hashes(1))
    assert slots.remove_worker(0) == [f"a{i}" for i in range(5)]
    assert slots.total_requests == 1
    assert slots.active_blocks().tolist() == [0, 1]
    assert slots.free("a0") is False
    slots.add_worker(0)
    assert book(slots, "a0", 0, hashes(1)) is True


def test_worker_numbers_are_checked():
    slots = table(workers=1)
    with pytest.raises(ValueError, match="worker number 0 is in use"):
        slots.add_worker(0)
    with pytest.raises(ValueError, match="worker number 7 is not in use"):
        slots.remove_worker(7)
    with pytest.raises(ValueError, match="worker number 1 is not in use"):
        book(slots, "a", 1)
    for number in (-1, 2**40):
        with pytest.raises(ValueError, match="is not in 0"):
            slots.add_worker(number)
    assert slots.capacity == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size"),
        ({"block_size": 4, "expiry_s": 0.0}, "expiry_s"),
        ({"block_size": 4, "expiry_s": float("nan")}, "expiry_s"),
        ({"block_size": 4, "max_entries": 0}, "max_entries"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SlotTable(**options)


def test_arrays_of_the_wrong_length_or_type_are_refused():
    slots = table()
    with pytest.raises(ValueError, match="3 overlaps for 2 worker numbers"):
        slots.potential(hashes(1), 4, np.zeros(3, dtype=np.uint32))
    with pytest.raises(ValueError, match="dtype"):
        slots.potential(np.array([1.0]), 4, None)
    with pytest.raises(ValueError, match="now must be finite"):
        book(slots, "a", 0, now=float("nan"))
    assert slots.total_requests == 0


def test_requests_expire_by_age_oldest_first():
    slots = table(expiry_s=10.0)
    book(slots, "a", 0, hashes(1), now=0.0)
    book(slots, "b", 1, hashes(2), now=5.0)
    book(slots, "c", 0, hashes(3), now=6.0)
    assert slots.expire(10.0) == []  # exactly the limit is not beyond it
    assert slots.expire(15.5) == ["a", "b"]
    assert slots.expired == 2
    assert slots.active_blocks().tolist() == [1, 0]


def test_a_request_that_is_touched_stays():
    slots = table(expiry_s=10.0)
    book(slots, "a", 0, now=0.0)
    book(slots, "b", 0, now=1.0)
    assert slots.touch("a", 9.0) is True
    assert slots.expire(12.0) == ["b"]
    assert slots.expire(19.5) == ["a"]


def test_a_clock_that_goes_back_expires_nothing_early():
    slots = table(expiry_s=10.0)
    book(slots, "a", 0, now=100.0)
    book(slots, "b", 0, now=3.0)
    assert slots.expire(4.0) == []
    assert slots.expire(110.5) == ["a", "b"]


def test_output_adds_a_block_each_time_it_reaches_into_a_new_one():
    slots = table(workers=1, block_size=4)
    book(slots, "a", 0, hashes(1), isl=6)
    # The prompt's second block is started already; 7 and 8 tokens end in it.
    assert [slots.add_output_tokens("a", n) for n in (1, 2, 3, 4, 6, 7)] == [
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert slots.active_blocks()[0] == 3
    assert slots.add_output_tokens("a", 30) is True  # one for a jump, however long
    assert slots.active_blocks()[0] == 4


def test_blocks_of_one_request_fade_as_its_expected_output_comes_out():
    slots = table(workers=1, block_size=4)
    book(slots, "a", 0, hashes(1, 2, 3, 4), isl=16, expected_output_tokens=10)
    book(slots, "b", 0, hashes(1, 2), isl=8)
    assert slots.add_output_tokens("a", 5) is True
    # Shared 1 and 2 weigh one each; 3, 4 and the new block weigh a half: 3.5, rounded.
    assert slots.active_blocks()[0] == 4
    assert slots.add_output_tokens("a", 9) is True  # 2 + 4 tenths
    assert slots.active_blocks()[0] == 2
    assert slots.add_output_tokens("a", 30) is True  # more than expected: nothing left of them
    assert slots.active_blocks()[0] == 2


def test_a_faded_block_is_whole_again_when_another_request_comes_to_share_it():
    slots = table(workers=1, block_size=4)
    book(slots, "a", 0, hashes(1, 2, 3, 4), isl=16, expected_output_tokens=10)
    slots.add_output_tokens("a", 10)
    assert slots.active_blocks()[0] == 0
    book(slots, "b", 0, hashes(1, 2), isl=8)
    assert slots.active_blocks()[0] == 2
    slots.free("a")
    assert slots.active_blocks()[0] == 2
    slots.free("b")
    slots.check_integrity()


def test_a_full_table_books_no_more_and_counts_it():
    slots = table(max_entries=5)
    assert book(slots, "a", 0, hashes(1, 2)) is True
    assert book(slots, "b", 0, hashes(3, 4)) is False
    assert book(slots, "b", 0, hashes(3)) is True
    for _ in range(3):  # the same tokens again are no further refusal
        assert slots.add_output_tokens("b", 100) is False
    assert slots.refused == 2
    slots.free("a")
    assert book(slots, "c", 0, hashes(3, 4)) is True
    slots.check_integrity()


def test_private_hashes_never_repeat():
    slots = table()
    drawn = np.concatenate([slots.private_hashes(1000), slots.private_hashes(1000)])
    assert len(np.unique(drawn)) == 2000
    assert slots.private_hashes(0).tolist() == []


def test_a_burst_leaves_no_memory_behind():
    slots = table(workers=16)
    book(slots, "first", 0)
    slots.free("first")
    empty = slots.memory_bytes()
    for i in range(3000):
        book(slots, f"r{i}", i % 16, np.arange(40 * i, 40 * i + 60, dtype=np.uint64))
    full = slots.memory_bytes()
    slots.check_integrity()
    for i in range(2980):
        slots.free(f"r{i}")
        if i % 500 == 0:
            slots.check_integrity()
    assert slots.memory_bytes() < full / 10
    for i in range(2980, 3000):
        assert slots.worker_of(f"r{i}") == i % 16
        slots.free(f"r{i}")
    for _ in range(64):
        book(slots, "small", 0)
        slots.free("small")
    assert slots.memory_bytes() == empty
    slots.check_integrity()


def test_a_block_held_by_many_workers_is_counted_for_each_and_let_go_in_any_order():
    slots = table(workers=300)
    order = np.random.default_rng(5).permutation(300).tolist()
    for number in order:
        book(slots, f"r{number}", number, hashes(1, 2, 10 + number))
    blocks, _tokens = slots.potential(hashes(1, 2, 3), 4, None)
    assert blocks.tolist() == [4] * 300
    slots.check_integrity()
    for number in order[::2]:
        slots.free(f"r{number}")
    slots.check_integrity()
    kept = set(order[1::2])
    assert slots.active_blocks().tolist() == [3 if n in kept else 0 for n in range(300)]


def test_a_table_in_use_can_be_thrown_away():
    slots = table()
    book(slots, "a", 0, hashes(1, 2))
    book(slots, "b", 1, hashes(1, 2))
    del slots
    gc.collect()
