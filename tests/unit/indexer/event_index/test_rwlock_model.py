"""Every schedule of the lock's protocol: no read is torn, nobody is stuck or passed over."""

import pytest
from oracles.rwlock_model import (
    WRITER,
    Flaws,
    Graph,
    State,
    Steps,
    explore,
    inside,
    is_waiting,
    starving,
)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return explore(readers=2)


def is_torn(state: State, after: Steps) -> bool:
    return any(thread.at == "torn" for thread in state.threads)


def is_stuck(state: State, after: Steps) -> bool:
    return not after and not is_torn(state, after)


def is_passed_over(state: State, after: Steps) -> bool:
    """A reader waits on though a second turn of the writer began since it came."""
    return any(thread.met > 1 for thread in state.threads)


def test_the_model_goes_everywhere(graph: Graph) -> None:
    assert len(graph) > 5_000
    assert any(all(inside(t) for t in s.threads[1:]) for s in graph), "readers are never both in"
    assert any(s.asleep == 2 for s in graph) and any(len(s.waiting) == 2 for s in graph)
    assert any(t.met for s in graph for t in s.threads)


def test_readers_see_all_of_a_step_or_nothing_of_it(graph: Graph) -> None:
    for state, after in graph.items():
        assert not is_torn(state, after)
        writing = state.threads[WRITER].at in ("flip", "flip back")
        assert not (writing and any(inside(t) for t in state.threads[1:]))


def test_nobody_is_ever_stuck(graph: Graph) -> None:
    assert not any(is_stuck(state, after) for state, after in graph.items())


def test_a_reader_waits_for_one_turn_of_the_writer(graph: Graph) -> None:
    """The next turn may begin before it noticed, but then waits for it."""
    assert not any(is_passed_over(state, after) for state, after in graph.items())


@pytest.mark.parametrize("who", [0, 1, 2])
def test_nobody_starves(graph: Graph, who: int) -> None:
    assert not starving(graph, lambda state: is_waiting(state.threads[who]))


@pytest.mark.parametrize(
    ("flaw", "shows"),
    [
        ("readers_wait", is_torn),
        ("writer_waits", is_torn),
        ("turns_differ", is_stuck),
        ("recheck_asleep", is_stuck),
        ("wake_after", is_stuck),
    ],
)
def test_every_part_of_the_protocol_is_needed(flaw, shows) -> None:
    graph = explore(2, Flaws(**{flaw: False}), until=shows)
    assert any(shows(state, after) for state, after in graph.items())
