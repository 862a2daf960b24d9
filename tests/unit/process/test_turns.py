"""Turns: fair to callers, whatever they have waiting."""

from collections import Counter, defaultdict, deque
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from dynamo_router.process.turns import MOST_REMEMBERED, Turns


def drained(turns: Turns[str]) -> list[str]:
    found = []
    while (item := turns.take()) is not None:
        found.append(item)
    return found


def test_callers_take_turns_however_many_items_one_has() -> None:
    turns: Turns[str] = Turns()
    for item in "abcd":
        turns.put("many", 1.0, item)
    assert turns.take() == "a"
    turns.put("one", 1.0, "x")
    turns.put("other", 1.0, "y")
    assert drained(turns) == ["x", "y", "b", "c", "d"]


def test_costly_items_count_for_what_they_cost() -> None:
    turns: Turns[str] = Turns()
    for number in range(3):
        turns.put("long", 4.0, f"L{number}")
    for number in range(9):
        turns.put("short", 1.0, f"s{number}")
    assert "".join(item[0] for item in drained(turns)) == "LssssLssssLs"


def test_a_caller_that_was_served_waits_for_others_that_came_meanwhile() -> None:
    turns: Turns[str] = Turns()
    turns.put("first", 5.0, "1")
    assert turns.take() == "1"  # and is under way
    turns.put("first", 5.0, "2")
    turns.put("second", 1.0, "x")
    assert drained(turns) == ["x", "2"]


def test_a_pause_earns_nothing_and_a_rest_forgets() -> None:
    turns: Turns[str] = Turns()
    for number in range(4):
        turns.put("busy", 1.0, f"b{number}")
        turns.put("steady", 1.0, f"s{number}")
    for _ in range(6):
        turns.take()
    for number in range(3):
        turns.put("back", 1.0, f"n{number}")
    assert Counter(item[0] for item in drained(turns)[:3]) == {"b": 1, "s": 1, "n": 1}
    turns.rest()
    turns.put("busy", 1.0, "b")
    turns.put("back", 1.0, "n")
    assert drained(turns) == ["b", "n"]


def test_few_callers_without_an_item_are_remembered() -> None:
    turns: Turns[str] = Turns()
    turns.put("waits", 1.0, "w")
    for number in range(10_000):
        turns.put(f"c{number}", 0.001, f"c{number}")
        turns.put(f"d{number}", 0.001, f"d{number}")
        turns.take()
        turns.take()
    assert len(turns._due) <= len(turns._waiting) + 2 * MOST_REMEMBERED


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.floats(0.001, 9.0)),
            st.just("take"),
            st.integers(0, 5),
        )
    )
)
def test_each_item_comes_once_and_in_its_callers_order(steps: list[object]) -> None:
    turns: Turns[tuple[str, int]] = Turns()
    waiting: dict[str, deque[tuple[str, int]]] = defaultdict(deque)
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            item = (step[0], number)
            turns.put(step[0], step[1], item)
            waiting[step[0]].append(item)
        elif step == "take":
            found = turns.take()
            assert (found is None) == (not any(waiting.values()))
            if found is not None:
                assert waiting[found[0]].popleft() == found
        else:
            left = [item for queue in waiting.values() for item in queue]
            if left:
                item = left[int(str(step)) % len(left)]
                turns.remove(item[0], item)
                waiting[item[0]].remove(item)
                turns.remove(item[0], item)  # it is not there any more
    assert len(turns) == sum(map(len, waiting.values()))
    rest: list[tuple[str, int]] = []
    while (each := turns.take()) is not None:
        rest.append(each)
    for caller, queue in waiting.items():
        assert [each for each in rest if each[0] == caller] == list(queue)
        assert all(one[1] < other[1] for one, other in pairwise(queue))
