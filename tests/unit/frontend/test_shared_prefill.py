"""Answers whose prompts begin alike: who leads, who waits, and for how many blocks."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.frontend.shared_prefill import ALONE, LEAST_TOKENS, parts_of
from dynamo_router.router.placement import Computed
from dynamo_router.router.policy import Decision
from dynamo_router.router.prompt import Prompt

BLOCK = 16
LONG = LEAST_TOKENS // BLOCK
WORKER = WorkerWithDpRank(7, 0)


def prompt(*blocks: int, rest: int = 0) -> Prompt:
    """Of blocks that have one number throughout, and some tokens more."""
    tokens = [number for number in blocks for _ in range(BLOCK)] + [1] * rest
    return Prompt(tokens, BLOCK)


def test_the_same_prompt_is_shared_whole() -> None:
    one = prompt(*range(LONG), rest=3)
    leads, *others = parts_of([one] * 3)
    assert leads.leads is not None and leads.follows is None
    assert [(part.follows, part.blocks) for part in others] == [(leads.leads, LONG)] * 2


@pytest.mark.parametrize(
    "first, second",
    [
        (prompt(*range(LONG - 1)), prompt(*range(LONG - 1))),  # too short
        (prompt(*range(LONG)), prompt(9, *range(1, LONG))),  # not from the beginning on
        (prompt(*range(LONG)), prompt(*range(LONG), *range(50, 51 + LONG))),  # less than half
    ],
)
def test_what_is_not_worth_waiting_for(first: Prompt, second: Prompt) -> None:
    assert parts_of([first, second]) == [ALONE, ALONE]


def test_lists_have_a_leader_for_each_beginning() -> None:
    a, b = list(range(LONG)), list(range(100, 100 + LONG))
    parts = parts_of([prompt(*a, 1), prompt(*b, 1), prompt(*a, 2), prompt(*b, 2), prompt(*a[:-1])])
    assert parts[0].leads is not None and parts[1].leads is not None
    assert parts[2].follows is parts[0].leads and parts[3].follows is parts[1].leads
    assert parts[2].blocks == parts[3].blocks == LONG
    assert parts[4] == ALONE


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=8))
def test_blocks_that_are_shared_are_the_same(tails: list[list[int]]) -> None:
    prompts = [prompt(*range(LONG), *tail) for tail in tails]
    parts = parts_of(prompts)
    leaders = {id(part.leads): at for at, part in enumerate(parts) if part.leads is not None}
    for at, part in enumerate(parts):
        if part.follows is None:
            continue
        lead = leaders[id(part.follows)]
        assert lead < at
        own, other = prompts[at].sequence_hashes, prompts[lead].sequence_hashes
        assert (own[: part.blocks] == other[: part.blocks]).all()
        longer = part.blocks + 1
        assert len(own) < longer or len(other) < longer or own[longer - 1] != other[longer - 1]


async def test_who_follows_waits_and_hears_once() -> None:
    leads, follows = parts_of([prompt(*range(LONG))] * 2)
    waiting = asyncio.create_task(follows.computed())
    await asyncio.sleep(0)
    assert not waiting.done() and leads.leads is not None
    leads.leads.begin(Decision(WORKER, 0, 0, LONG, 0, "a", 0, 0))
    leads.leads.begin(None)
    assert await waiting == Computed(WORKER, LONG)


async def test_a_leader_that_ended_without_a_token_sends_nobody_anywhere() -> None:
    leads, follows = parts_of([prompt(*range(LONG))] * 2)
    assert leads.leads is not None
    leads.leads.begin(None)
    assert await follows.computed() is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2 * LONG + 9)), max_size=12))
def test_each_follows_the_first_one_that_shares_enough(made: list[tuple[int, int]]) -> None:
    """As comparing each with each finds it."""
    prompts = [prompt(*[begins] * (LONG // 2), *range(length)) for begins, length in made]
    leaders: list[int] = []
    follows = dict[int, int]()
    for at, each in enumerate(prompts):
        least = -(-max(LONG * 2, each.blocks) // 2)  # half of it, and at least LONG blocks
        if each.blocks < least:
            continue
        for leader in leaders:
            own = prompts[leader].sequence_hashes[:least]
            if len(own) == least and (own == each.sequence_hashes[:least]).all():
                follows[at] = leader
                break
        else:
            leaders.append(at)
    parts = parts_of(prompts)
    numbers = {id(part.leads): at for at, part in enumerate(parts) if part.leads is not None}
    found = {
        at: numbers[id(part.follows)] for at, part in enumerate(parts) if part.follows is not None
    }
    assert found == follows
