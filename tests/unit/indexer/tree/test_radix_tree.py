"""The radix tree's door: forms of input, Dynamo's names, and what is refused."""

import array
import json
import random
import sys

import numpy as np
import pytest
from instruments.tree_check import check_integrity

from dynamo_router.base.errors import EventError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.tree import RadixTree
from dynamo_router.indexer.tree._inspect import read_edges

TOP = 2**64 - 1


@pytest.fixture
def tree():
    tree = RadixTree()
    yield tree
    check_integrity(tree)


def refusal(act, *args):
    with pytest.raises(EventError) as caught:
        act(*args)
    assert isinstance(caught.value, RuntimeError)
    return caught.value.code


FORMS = {
    "list": list,
    "tuple": tuple,
    "numpy": lambda hashes: np.array(hashes, np.uint64),
    "array": lambda hashes: array.array("Q", hashes),
    "memoryview": lambda hashes: memoryview(np.array(hashes, np.uint64)),
    "read-only": lambda hashes: np.frombuffer(np.array(hashes, np.uint64).tobytes(), np.uint64),
    "strided": lambda hashes: np.repeat(np.array(hashes, np.uint64), 2)[::2],
    "numpy items": lambda hashes: list(np.array(hashes, np.uint64)),
    "iterator": iter,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_hashes_is_taken(tree, form):
    as_form = FORMS[form]
    tree.store(1, None, as_form([TOP, 0, 2**63]), as_form([0, TOP, 5]))
    tree.store(1, 2**63, as_form([9]), as_form([6]))
    assert tree.match(as_form([0, TOP, 5, 6, 7])).scores == {(1, 0): 4}
    tree.remove(1, as_form([9, 2**63]))
    assert tree.find_matches(as_form([0, TOP, 5])).scores == {(1, 0): 2}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ([-1], OverflowError),
        ([2**64], OverflowError),
        ([1.0], TypeError),
        (["1"], TypeError),
        ([None], TypeError),
        (1, TypeError),
        (None, TypeError),
        ("1", TypeError),
        (np.array([1.0]), TypeError),
        (np.array([-1]), OverflowError),
        (np.zeros((2, 2), np.uint64), ValueError),
    ],
)
def test_what_is_no_list_of_hashes_is_refused_everywhere(tree, bad, error):
    good = [1] * (np.size(bad) if isinstance(bad, (list, np.ndarray)) else 1)
    with pytest.raises(error):
        tree.store(1, None, bad, good)
    with pytest.raises(error):
        tree.store(1, None, good, bad)
    with pytest.raises(error):
        tree.remove(1, bad)
    with pytest.raises(error):
        tree.match(bad)
    assert len(tree) == 0


@pytest.mark.parametrize("parent", [-1, 2**64])
def test_a_parent_out_of_range_is_refused(tree, parent):
    with pytest.raises(OverflowError):
        tree.store(1, parent, [1], [1])
    with pytest.raises(TypeError):
        tree.store(1, 1.5, [1], [1])


@pytest.mark.parametrize("worker", [-1, 2**64, (1,), (1, 2, 3), (1, -1), (1, 2**32)])
def test_a_worker_out_of_range_is_refused(tree, worker):
    for act in (
        lambda: tree.store(worker, None, [1], [1]),
        lambda: tree.remove(worker, [1]),
        lambda: tree.remove_worker(worker),
        lambda: tree.clear_all_blocks(worker),
        lambda: tree.num_blocks(worker),
        lambda: tree.bind(worker, 0),
    ):
        with pytest.raises(ValueError):
            act()
    with pytest.raises(TypeError):
        tree.store("1", None, [1], [1])
    assert tree.workers() == []


def test_lengths_must_agree(tree):
    with pytest.raises(ValueError, match="2 block hashes for 1 local hashes"):
        tree.store(1, None, [1, 2], [1])


def test_an_event_without_blocks_changes_nothing(tree):
    tree.store(1, None, [], [])
    tree.remove(1, [])
    tree.remove(2, [])
    assert tree.workers() == [(1, 0)] and len(tree) == 0 and tree.match([]).scores == {}


def test_an_unknown_parent_drops_the_whole_event(tree):
    tree.store(1, None, [1], [1])
    assert refusal(tree.store, 1, 5, [6, 7], [6, 7]) == "parent_not_found"
    assert (
        refusal(tree.store, 2, 1, [6], [6]) == "parent_not_found"
    )  # another worker's external_hash
    assert len(tree) == 1 and tree.num_blocks(2) == 0


def test_a_block_that_was_removed_is_no_parent(tree):
    tree.store(1, None, [1, 2], [1, 2])
    tree.store(2, None, [1, 2], [1, 2])
    tree.remove(1, [2])
    assert refusal(tree.store, 1, 2, [3], [3]) == "parent_not_found"


@pytest.mark.parametrize(
    ("parent", "external_hashes"),
    [
        (2, [2]),  # its own parent
        (2, [1]),  # a cycle
        (2, [8, 8]),  # one hash twice
        (2, [8, 9, 1]),  # a cycle later on
        (None, [1, 1]),
    ],
)
def test_a_chain_that_runs_into_itself_is_cut_off_there(tree, parent, external_hashes):
    tree.store(1, None, [1, 2], [1, 2])
    local_hashes = [50 + i for i in range(len(external_hashes))] if parent else [1, 9]
    assert refusal(tree.store, 1, parent, external_hashes, local_hashes) == "invalid_sequence"
    path = [1, 2, *local_hashes] if parent else local_hashes
    assert tree.match(path).scores == {(1, 0): len(path) - 1}


def test_unknown_and_repeated_removals_are_reported_and_the_others_applied(tree):
    tree.store(1, None, [1, 2, 3, 4], [1, 2, 3, 4])
    assert refusal(tree.remove, 1, [9, 4, 4, 3]) == "block_not_found"
    assert tree.match([1, 2, 3, 4]).scores == {(1, 0): 2}
    assert refusal(tree.remove, 2, [1]) == "block_not_found"
    assert refusal(tree.remove, (1, 1), [1]) == "block_not_found"
    assert tree.workers() == [(1, 0)]


def test_a_hole_hides_what_is_below_until_it_is_filled(tree):
    tree.store(1, None, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert len(read_edges(tree)) == 1
    tree.remove(1, [3])
    assert tree.match([1, 2, 3, 4, 5]).scores == {(1, 0): 2}
    assert tree.num_blocks(1) == 4 and len(tree) == 5
    tree.store(1, 2, [3], [3])
    assert tree.match([1, 2, 3, 4, 5]).scores == {(1, 0): 5}
    assert len(read_edges(tree)) == 1  # the split is healed


def test_a_hash_that_moves_is_not_counted_twice(tree):
    tree.store(1, None, [1, 2], [1, 2])
    tree.store(1, None, [9, 2], [7, 8])
    assert tree.match([1, 2]).scores == {(1, 0): 1}
    assert tree.match([7, 8]).scores == {(1, 0): 2}
    assert tree.num_blocks(1) == 3


def test_workers_may_use_one_hash_for_different_blocks(tree):
    for worker in range(100):
        tree.store(worker, None, [1, 2], [worker, 2])
    for worker in range(100):
        assert tree.match([worker, 2]).scores == {(worker, 0): 2}
        tree.remove(worker, [2])
        assert tree.match([worker, 2]).scores == {(worker, 0): 1}


def test_a_hash_that_names_two_blocks_names_the_right_one_for_each_worker(tree):
    tree.store(1, None, [7], [1])
    tree.store(2, None, [7], [2])  # 7 is the first block's already
    tree.store(3, None, [7], [2])
    check_integrity(tree)
    tree.store(3, 7, [8], [3])
    assert tree.match([2, 3]).scores == {(2, 0): 1, (3, 0): 2}
    assert refusal(tree.remove, 1, [8]) == "block_not_found"
    tree.remove(1, [7])
    tree.store(4, None, [7], [2])
    assert tree.match([2]).scores == {(2, 0): 1, (3, 0): 1, (4, 0): 1}


def test_workers_may_call_one_block_differently(tree):
    for worker in range(100):
        tree.store(worker, None, [2 * worker, 2 * worker + 1], [1, 2])
    assert len(tree) == 2 and set(tree.match([1, 2]).scores.values()) == {2}
    for worker in range(100):
        tree.remove(worker, [2 * worker + 1])
    assert len(tree) == 1 and len(tree.match([1, 2])) == 100


def test_a_large_event_is_one_edge(tree):
    rng = np.random.default_rng(3)
    external_hash, local = rng.integers(0, TOP, (2, 100_000), np.uint64, endpoint=True)
    tree.store(1, None, external_hash, local)
    tree.store(2, None, external_hash[:70_000], local[:70_000])
    assert len(read_edges(tree)) == 1
    assert tree.match(local).scores == {(1, 0): 100_000, (2, 0): 70_000}
    tree.remove(1, external_hash[::-1])
    assert len(tree) == 70_000
    tree.remove(2, external_hash[:70_000])
    assert len(tree) == 0


def test_decoding_conversations_side_by_side_do_not_scatter_the_tree(tree):
    """Blocks that come one by one, of many conversations in turn, share edges."""
    for step in range(64):
        for c in range(20):
            external_hash = 1000 * c + step
            tree.store(1, external_hash - 1 if step else None, [external_hash], [external_hash])
    assert len(read_edges(tree)) <= 20 * (64 / 8 + 1)


def test_ranks_are_workers_of_their_own(tree):
    tree.store((1, 0), None, [1, 2], [1, 2])
    tree.store((1, 5), None, [1], [1])
    tree.store(2, None, [1], [1])
    assert tree.match([1, 2]).scores == {(1, 0): 2, (1, 5): 1, (2, 0): 1}
    tree.clear_all_blocks((1, 0))
    assert tree.match([1, 2]).scores == {(1, 5): 1, (2, 0): 1}
    assert tree.num_blocks(1) == 1
    tree.clear_all_blocks(1)
    assert tree.match([1, 2]).scores == {(2, 0): 1}
    assert sorted(tree.workers()) == [(1, 0), (1, 5), (2, 0)]
    tree.remove_worker(1)
    tree.remove_worker(77)
    tree.remove_worker((2, 9))
    assert tree.workers() == [(2, 0)]


def test_a_match_keeps_its_names_when_workers_go(tree):
    tree.store(1, None, [1], [1])
    found = tree.match([1])
    tree.remove_worker(1)
    tree.store(2, None, [1], [1])
    assert found.scores == {(1, 0): 1}
    assert found.workers.tolist() == [WorkerWithDpRank(1, 0)]
    assert found.overlaps.tolist() == [1] and found.overlaps.dtype == np.uint32
    assert found.frequencies == [] and len(found) == 1
    assert "WorkerWithDpRank(worker_id=1, dp_rank=0): 1" in repr(found)


def test_bound_workers_are_matched_into_an_array(tree):
    for worker in range(4):
        tree.store(worker, None, [1, 2, 3][: worker + 1], [1, 2, 3][: worker + 1])
    tree.bind(1, 5)
    tree.bind(2, 0)
    out = np.full(6, 77, np.uint32)
    assert tree.match_bound([1, 2, 3], out) == 3
    assert out.tolist() == [3, 0, 0, 0, 0, 2]
    tree.bind(2, None)
    assert tree.match_bound(np.array([1, 2, 3], np.uint64), out[:5]) == 0
    assert tree.match_bound([1], out[:0]) == 0
    with pytest.raises(ValueError):
        tree.match_bound([1], np.zeros(3, np.int64))


def test_early_exit_stops_at_the_last_worker(tree):
    tree.store(1, None, [1, 2], [1, 2])
    tree.store(2, None, [1, 2], [1, 2])
    tree.store(1, 2, [3], [3])
    tree.store(1, 3, [4], [4])
    tree.store(2, 2, [5], [5])
    assert tree.find_matches([1, 2, 3, 4]).scores == {(1, 0): 4, (2, 0): 2}
    early = tree.find_matches([1, 2, 3, 4], early_exit=True).scores
    assert early[2, 0] == 2 and early[1, 0] in (3, 4)


def event(data, event_id=0, **fields):
    return json.dumps({"event_id": event_id, "data": data, **fields}).encode()


def stored(parent, *blocks):
    return {
        "stored": {
            "parent_hash": parent,
            "blocks": [{"block_hash": b, "tokens_hash": t} for b, t in blocks],
        }
    }


def test_events_of_dynamo_are_applied(tree):
    tree.apply_event(7, event(stored(None, (11, 1), (12, 2))))
    tree.apply_event(7, event(stored(None, (11, 1)), dp_rank=3))
    tree.apply_event((7, 4), event(stored(None, (11, 1))))
    assert tree.match([1, 2]).scores == {(7, 0): 2, (7, 3): 1, (7, 4): 1}
    tree.apply_event(7, event({"removed": {"block_hashes": [12]}}))
    tree.apply_event(7, bytearray(event("cleared", dp_rank=3)))
    assert tree.match([1, 2]).scores == {(7, 0): 1, (7, 4): 1}
    with pytest.raises(EventError, match="Failed to find parent block"):
        tree.apply_event(7, event(stored(99, (12, 2))))
    with pytest.raises(EventError, match="Failed to find block"):
        tree.apply_event(7, event({"removed": {"block_hashes": [12]}}))
    with pytest.raises(EventError, match="Invalid block sequence"):
        tree.apply_event(7, event(stored(11, (11, 2))))


@pytest.mark.parametrize("junk", [b"", b"{", b"null", b"[]", b'{"event_id":0}', b"\xff" * 9])
def test_what_is_no_event_is_a_value_error(tree, junk):
    with pytest.raises(ValueError, match="cannot be decoded"):
        tree.apply_event(1, junk)
    assert tree.workers() == []


def test_a_dump_rebuilds_holes_and_renamed_blocks(tree):
    tree.store(1, None, range(10), range(10))
    tree.store(2, None, range(100, 108), range(8))  # other hashes
    tree.remove(1, [0, 4, 5])
    tree.remove(2, [100, 101])
    tree.store(1, None, [4], [50])  # the hole's external_hash, elsewhere
    copy = RadixTree()
    for line in tree.dump_tree_as_events():
        whole = json.loads(line)
        assert whole["storage_tier"] == "device"
        copy.apply_event(whole["worker_id"], json.dumps(whole["event"]).encode())
    check_integrity(copy)
    tree.store(1, None, [0], [0])
    copy.store(1, None, [0], [0])
    for both in (tree, copy):
        assert both.match(range(10)).scores == {(1, 0): 4}
        assert both.num_blocks(1) == 9 and both.num_blocks(2) == 6
        both.remove(2, range(102, 108))


@pytest.mark.parametrize("numbered", ["in order", "shifted", "shuffled", "partly unbound"])
def test_a_crowd_is_matched_under_its_numbers(numbered: str) -> None:
    """Whole words of workers are written at once where their numbers follow each other."""
    tree, crowd = RadixTree(), 200
    numbers: list[int | None] = list(range(crowd))
    if numbered == "shifted":
        numbers = [number + 37 for number in range(crowd)]
    elif numbered == "shuffled":
        random.Random(1).shuffle(numbers)
    elif numbered == "partly unbound":
        numbers[70] = None
    for worker in range(crowd):
        tree.store(worker, None, [1, 2, 3], [11, 12, 13])
        tree.bind(worker, numbers[worker])
    tree.remove(5, [3])
    for size in (crowd + 40, 100, 64, 10):
        out = np.full(size, 99, np.uint32)
        longest = tree.match_bound([11, 12, 13, 14], out)
        expected = np.zeros(size, np.uint32)
        for worker, number in enumerate(numbers):
            if number is not None and number < size:
                expected[number] = 2 if worker == 5 else 3
        assert np.array_equal(out, expected) and longest == expected.max()


@pytest.mark.parametrize("ask", ["match", "workers"])
def test_names_that_are_made_while_workers_change_are_made_again(ask: str) -> None:
    """A profile hook stands for another thread: it is let in while the names are made."""
    tree = RadixTree()
    for worker in range(4):
        tree.store(worker, None, [77], [77])

    done: list[bool] = []

    def hook(frame: object, event: str, arg: object) -> None:
        if not done:
            done.append(True)
            tree.remove_worker(0)
            tree.store(99, None, [77], [77])

    sys.setprofile(hook)
    try:
        first = tree.match([77]).scores if ask == "match" else tree.workers()
    finally:
        sys.setprofile(None)
    assert done and first is not None
    present = {(1, 0), (2, 0), (3, 0), (99, 0)}
    assert set(tree.match([77]).scores) == present == set(tree.workers())
