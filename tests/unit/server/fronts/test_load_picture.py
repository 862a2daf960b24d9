"""Where requests go by the loads known last."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import NoWorkersError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.server.fronts.load_picture import LoadPicture

A, B, C = (WorkerWithDpRank(number, 0) for number in (1, 2, 3))
ALL = {A: 1.0, B: 1.0, C: 1.0}


def picture(*loads: tuple[int, int, int], seed: int = 1) -> LoadPicture:
    made = LoadPicture(random.Random(seed))
    made.tell(loads)
    return made


def test_the_least_loaded_is_chosen_and_what_was_sent_since_counts() -> None:
    known = picture((1, 0, 2), (2, 0, 5), (3, 0, 4))
    chosen = []
    for _ in range(4):
        worker = known.choose(ALL)
        known.on_sent(worker)
        chosen.append(worker)
    assert chosen[:2] == [A, A]
    assert Counter(chosen) == {A: 3, C: 1} or Counter(chosen) == {A: 2, C: 2}
    known.on_ended(B)
    known.on_ended(B)
    known.on_ended(B)
    assert known.choose(ALL) == B


def test_the_other_fronts_are_taken_to_do_the_same() -> None:
    known = picture((1, 0, 0), (2, 0, 3))
    known.fronts = 4
    known.on_sent(A)
    assert known.load(A) == 4
    assert known.choose({A: 1.0, B: 1.0}) == B


def test_a_new_picture_takes_the_place_of_the_old_one() -> None:
    known = picture((1, 0, 0), (2, 0, 3))
    known.on_sent(A)
    known.tell([(1, 0, 7)])
    assert (known.load(A), known.load(B)) == (7, 0)


def test_excluded_and_pinned_workers_and_weights() -> None:
    known = picture((2, 0, 9))
    assert known.choose(ALL, excluded={1, 3}) == B
    assert known.choose(ALL, pinned=B) == B
    with pytest.raises(NoWorkersError):
        known.choose(ALL, excluded={1, 2, 3})
    with pytest.raises(NoWorkersError):
        known.choose({A: 1.0}, pinned=B)
    assert picture((1, 0, 3), (2, 0, 1)).choose({A: 1.0, B: 0.25}) == A


def test_ties_are_drawn() -> None:
    known = picture()
    assert {known.choose(ALL) for _ in range(100)} == {A, B, C}


ranks = st.builds(WorkerWithDpRank, st.integers(1, 4), st.integers(0, 1))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1), st.integers(0, 9))),
    st.lists(st.tuples(ranks, st.booleans())),
    st.dictionaries(ranks, st.sampled_from((0.25, 0.5, 1.0)), min_size=1),
)
def test_nobody_who_is_ready_has_less_to_do(
    loads: list[tuple[int, int, int]],
    since: list[tuple[WorkerWithDpRank, bool]],
    ready: dict[WorkerWithDpRank, float],
) -> None:
    known = picture(*loads)
    for worker, sent in since:
        (known.on_sent if sent else known.on_ended)(worker)
    chosen = known.choose(ready)
    assert all(known.load(worker) >= 0 for worker in ready)
    costs = {worker: (1 + known.load(worker)) / weight for worker, weight in ready.items()}
    assert costs[chosen] == min(costs.values())
