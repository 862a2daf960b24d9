"""Contents of blocks: what is another's, stale, half or transposed shows."""

import numpy as np
import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.transfer.arena import ArenaLayout, BlockArena, copy_blocks, runs

HASHES = [2**64 - 1, 0, 7, 2**33 + 5]


def test_what_was_written_is_right_and_everything_else_is_wrong() -> None:
    arena = BlockArena(ArenaLayout(tp=2), 8)
    arena.fill([5, 1, 2, 7], HASHES)
    assert arena.wrong([5, 1, 2, 7], HASHES) == []
    assert arena.wrong([5, 1, 2, 7], HASHES[::-1]) == [0, 1, 2, 3]
    assert arena.wrong([5, 0], [HASHES[0], 3]) == [1], "never written"
    arena.words[1, 2, 3, 0, 0] += np.uint64(1)  # one word of the last layer, at the second rank
    assert arena.wrong([5, 1, 2], HASHES[:3]) == [2]
    assert arena.wrong([], []) == []


@pytest.mark.parametrize(("here", "there"), [(1, 1), (1, 4), (4, 2), (2, 8), (8, 1)])
def test_layouts_of_any_two_tps_are_transposed(here: int, there: int) -> None:
    source, target = (BlockArena(ArenaLayout(tp=tp), 8) for tp in (here, there))
    source.fill([1, 2, 3, 6], HASHES)
    copy_blocks(source, [1, 2, 3, 6], target, [4, 5, 6, 0])
    assert target.wrong([4, 5, 6, 0], HASHES) == []
    assert target.wrong([4, 5, 6, 0], [1, 2, 3, 4]) == [0, 1, 2, 3]


def test_heads_of_the_wrong_rank_show() -> None:
    arena = BlockArena(ArenaLayout(tp=2), 2)
    arena.fill([0], [9])
    arena.words[[0, 1], 0] = arena.words[[1, 0], 0]
    assert arena.wrong([0], [9]) == [0]


def test_stretches_that_ascend_on_both_sides_are_one_copy() -> None:
    assert list(runs([3, 4, 5, 9, 10], [0, 1, 7, 8, 9])) == [
        (slice(3, 5), slice(0, 2)),
        (slice(5, 6), slice(7, 8)),
        (slice(9, 11), slice(8, 10)),
    ]
    assert list(runs([], [])) == []
    with pytest.raises(ValueError, match="2 blocks here, 1 there"):
        list(runs([1, 2], [1]))


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ({"layers": 0}, "layers: must be at least 1"),
        ({"tp": 3}, "tp: 8 KV heads are not divided by 3"),
        ({"bytes_per_block": 1000}, "1000 is no multiple of 256, 8 bytes of each head and layer"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(layout: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ArenaLayout(**layout)


def test_layouts_fit_at_any_tp_and_else_not() -> None:
    assert ArenaLayout().why_not_to(ArenaLayout(tp=4)) is None
    assert ArenaLayout().why_not_to(ArenaLayout(layers=2)) == "its layers is 2, not 4"
