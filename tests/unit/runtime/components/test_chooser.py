"""Whose turn it is: everybody's, but for those that failed lately, unless there is nobody else."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.runtime.components.instance_selector import InstanceChooser

IDS = st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=8)


@given(IDS)
def test_in_turn_everybody_has_one(ids: set[int]) -> None:
    chooser = InstanceChooser()
    turns = [chooser.choose("round_robin", ids, 0.0) for _ in range(3 * len(ids))]
    assert turns == sorted(ids) * 3


def test_the_turn_goes_on_when_somebody_joins_or_leaves() -> None:
    chooser = InstanceChooser()
    assert [chooser.choose("round_robin", [1, 3, 5], 0.0) for _ in range(2)] == [1, 3]
    assert chooser.choose("round_robin", [1, 4, 5], 0.0) == 4
    assert chooser.choose("round_robin", [1], 0.0) == 1


@given(st.integers())
def test_at_random_nobody_is_left_out(seed: int) -> None:
    chooser = InstanceChooser(rng=Random(seed))
    chosen = [chooser.choose("random", [1, 2, 3], 0.0) for _ in range(200)]
    assert {chosen.count(id) > 30 for id in (1, 2, 3)} == {True}


def test_who_failed_is_passed_over_for_a_while() -> None:
    chooser = InstanceChooser(inhibited_s=5.0)
    chooser.report_down(1, 10.0)
    assert {chooser.choose("random", [1, 2], 14.9) for _ in range(20)} == {2}
    assert {chooser.choose("random", [1, 2], 15.0) for _ in range(50)} == {1, 2}
    chooser.report_down(1, 20.0)
    chooser.report_up(1)
    assert {chooser.choose("random", [1, 2], 20.0) for _ in range(50)} == {1, 2}


@given(IDS, st.sampled_from(["random", "round_robin"]))
def test_the_last_one_is_never_taken_away(ids: set[int], mode) -> None:
    chooser = InstanceChooser()
    for id in ids:
        chooser.report_down(id, 0.0)
    tried: list[int] = []
    while (chosen := chooser.choose(mode, ids, 0.0, tried)) is not None:
        assert chosen in ids and chosen not in tried
        tried.append(chosen)
    assert set(tried) == ids
