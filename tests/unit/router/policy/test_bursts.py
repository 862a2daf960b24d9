"""Requests that arrive together spread over the workers, on a router that has seen none before.

That engines whose steps were learnt get their share as well is in
tests/unit/bench/simulation/test_bursts.py, through real processes in
tests/integration/operating/test_bursts.py.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.policy.routers import router_among

from dynamo_router.base.clock import ManualClock
from dynamo_router.router.policy._forecast import Forecast
from dynamo_router.router.policy.forecast import CHUNK_TOKENS, ForecastParams

BLOCK = 16
GAPS_S = (0.0, 5e-5, 3e-4)
FLEETS = (4, 8, 31, 32)


def prompts(count: int, shortest: int, longest: int, shared: int = 0) -> list[Any]:
    """Different ones of these lengths, behind `shared` tokens that are the same."""
    rng = np.random.default_rng(count)
    head = np.arange(shared, dtype=np.uint32)
    lengths = rng.integers(shortest, longest + 1, count)
    return [np.r_[head, rng.integers(9, 9999, size, np.uint32)] for size in lengths]


def most(requests: int, workers: int) -> int:
    """Requests of a burst that one worker may get."""
    return max(1, math.ceil(1.5 * requests / workers))


def burst(made: list[Any], workers: int, gap_s: float, **facts: Any) -> Counter[Any]:
    """Requests by worker and rank, each booked before the next is decided on."""
    clock = ManualClock()
    sent: Counter[Any] = Counter()
    with router_among(
        *range(workers), clock=clock, seed=len(made), facts=facts, block_size=BLOCK
    ) as router:
        for number, prompt in enumerate(made):
            worker = router.best_worker(prompt, f"r{number}")
            sent[worker[:2]] += 1
            clock.advance(gap_s)
    return sent


@pytest.mark.parametrize("gap_s", GAPS_S)
@pytest.mark.parametrize("workers", FLEETS)
def test_short_prompts_spread(workers: int, gap_s: float) -> None:
    for count in range(2, 65):
        sent = burst(prompts(count, 30, 60), workers, gap_s)
        assert max(sent.values()) <= most(count, workers), (count, sent)


CASES: dict[str, Callable[[int, int], tuple[list[Any], dict[str, Any]]]] = {
    "equal lengths": lambda count, _: (prompts(count, 40, 40), {}),
    "a token each": lambda count, _: (prompts(count, 1, 1), {}),
    "a shared beginning": lambda count, _: (prompts(count, 30, 60, shared=640), {}),
    "one prompt": lambda count, _: (prompts(1, 40, 40) * count, {}),
    "small steps": lambda count, _: (prompts(count, 30, 60), {"max_num_batched_tokens": 64}),
    "long prompts": lambda count, _: (prompts(count, 900, 1100), {}),
}


@pytest.mark.parametrize("gap_s", GAPS_S)
@pytest.mark.parametrize("case", CASES)
def test_so_do_others_that_are_alike(case: str, gap_s: float) -> None:
    for workers, count in ((4, 12), (4, 5), (8, 16), (8, 64), (31, 32), (31, 64)):
        made, facts = CASES[case](count, workers)
        sent = burst(made, workers, gap_s, **facts)
        assert max(sent.values()) <= most(count, workers), (workers, count, sent)


@pytest.mark.parametrize("gap_s", GAPS_S)
def test_ranks_of_a_worker_get_their_share(gap_s: float) -> None:
    for count in range(2, 65):
        sent = burst(prompts(count, 30, 60), 2, gap_s, dp_size=4)
        assert max(sent.values()) <= most(count, 8), (count, sent)


@pytest.mark.parametrize("gap_s", GAPS_S)
def test_a_burst_spreads_beside_equal_decodes(gap_s: float) -> None:
    """Each of the workers has two answers under way."""
    clock = ManualClock()
    with router_among(*range(4), clock=clock, seed=3, block_size=BLOCK) as router:
        for number, prompt in enumerate(prompts(8, 200, 200)):
            router.best_worker(prompt, f"answer-{number}", pinned_worker=number % 4)
        clock.advance(1.0)
        for number in range(8):
            router.mark_prefill_complete(f"answer-{number}")
        clock.advance(0.1)
        sent: Counter[int] = Counter()
        for number, prompt in enumerate(prompts(12, 30, 60)):
            sent[router.best_worker(prompt, f"r{number}")[0]] += 1
            clock.advance(gap_s)
    assert max(sent.values()) <= most(12, 4), sent


def test_first_tokens_of_one_step_are_told_apart_from_those_of_two() -> None:
    """An engine takes a burst into one step, though a step for each was foreseen.

    Their first tokens then come all but together; taken for steps they were thousands of tokens
    computed in no time, and a token would seem to cost nothing.
    """
    step_s, token_s, tokens = 0.02, 2e-5, 50
    kernel = Forecast(ForecastParams())
    kernel.add_worker(0, None, None)
    now = 0.0
    for turn in range(100):
        now += 1.0
        count = 1 + turn % 20
        for number in range(count):
            kernel.book(f"{turn}-{number}", 0, tokens, tokens, now + 1e-4 * number)
        now += step_s + count * tokens * token_s
        for number in range(count):
            now += 1e-4
            kernel.first_token(f"{turn}-{number}", now)
            kernel.end(f"{turn}-{number}", now, 1)
    step, chunk, *_ = kernel.learnt()[0]
    assert step == pytest.approx(step_s, rel=0.1)
    assert chunk / CHUNK_TOKENS == pytest.approx(token_s, rel=0.2)
    kernel.check_integrity()
