"""Which addresses of a name count: never fewer for a failure, never one that is gone for good."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.workers.dns_name import ANSWERS_TO_LOSE, NameState, resolve
from dynamo_router.workers.worker_url import WorkerName

ANSWERS = st.lists(st.frozensets(st.sampled_from("abcde"), max_size=5), max_size=30)


def test_a_new_address_counts_at_once_and_one_that_is_missing_twice_is_gone() -> None:
    state = NameState()
    assert state.on_answer(["a", "b"]) == (["a", "b"], [])
    assert state.on_answer(["a", "c"]) == (["c"], [])
    assert state.on_answer(["a", "b"]) == ([], [])  # b was missing once, c is now
    assert state.on_answer(["a", "b"]) == ([], ["c"])
    assert state.on_answer([]) == ([], []) and set(state.addresses) == {"a", "b"}


@given(answers=ANSWERS)
def test_it_is_what_the_last_answers_say(answers: list[frozenset[str]]) -> None:
    state, current = NameState(), set[str]()
    for number, answer in enumerate(answers):
        change = state.on_answer(sorted(answer))
        assert current.isdisjoint(change.come) and current.issuperset(change.gone)
        current = (current | set(change.come)) - set(change.gone)
        assert current == set(state.addresses)
        said = [each for each in answers[: number + 1] if each]
        # The union of the last answers that said something.
        assert current == set().union(*said[-ANSWERS_TO_LOSE:])


async def test_the_system_is_asked_and_ipv4_goes_first() -> None:
    assert await resolve(WorkerName("localhost", 1)) == ["127.0.0.1"]
    assert await resolve(WorkerName("127.0.0.2", 1)) == ["127.0.0.2"]
    assert await resolve(WorkerName("::1", 1)) == ["::1"]
    assert "127.0.0.1" in await resolve(WorkerName("localhost", 1, family="any"))
    with pytest.raises(socket.gaierror):
        await resolve(WorkerName("127.0.0.2", 1, family="ipv6"))
    with pytest.raises(OSError, match="is no name"):
        await resolve(WorkerName("x" * 64, 1))  # a label has 63 characters at most
