"""When predictions fail, and when they hold again."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.residuals import ResidualsOracle

from dynamo_router.router.policy.residuals._residuals import Residuals
from dynamo_router.router.policy.residuals.watch import (
    CHECK_EVERY,
    CONFIRMED,
    FAILS,
    LEAST,
    MOST_TRUSTED,
    TRUSTED,
    WINDOW,
    WORKER_WINDOW,
    ResidualWatch,
)

Pair = tuple[float, float]
ENOUGH = 40 * CHECK_EVERY


class Traffic:
    """Prompts of all lengths on eight workers, and predictions of their TTFT."""

    def __init__(self, watch: ResidualWatch, seed: int = 1, workers: int = 8) -> None:
        self.watch, self.workers = watch, workers
        self.rng = random.Random(seed)
        self.changes = 0

    def usual(self) -> float:
        return self.rng.lognormvariate(-1.0, 1.0)

    def run(self, pair: Callable[[int], Pair], count: int = ENOUGH) -> None:
        for turn in range(count):
            worker = turn % self.workers
            self.changes += self.watch.on_first_token(worker, *pair(worker))

    def good(self, worker: int) -> Pair:
        took = self.usual()
        return took * self.rng.uniform(0.85, 1.15), took

    def unrelated(self, worker: int) -> Pair:
        return self.usual(), self.usual()

    def biased(self, worker: int) -> Pair:
        took = self.usual()
        return took / 6, took


def test_good_predictions_are_trusted() -> None:
    watch = ResidualWatch()
    traffic = Traffic(watch)
    traffic.run(traffic.good)
    assert watch.trusted and traffic.changes == 0
    assert 0.02 < watch.state().ttft_scatter < 0.15 and watch.state().failing_workers == 0


def test_a_factor_that_all_share_changes_no_choice_and_is_no_failure() -> None:
    watch = ResidualWatch()
    traffic = Traffic(watch)
    traffic.run(traffic.biased)
    assert watch.trusted


def test_times_that_are_small_or_all_alike_are_no_failure() -> None:
    watch = ResidualWatch()
    traffic = Traffic(watch)
    traffic.run(lambda worker: (0.001 + traffic.rng.random() * 0.01, 0.004))
    traffic.run(lambda worker: (0.3, 0.3 + traffic.rng.random() * 0.02))
    assert watch.trusted


def test_predictions_that_say_nothing_fail_and_are_counted_once() -> None:
    watch = ResidualWatch()
    traffic = Traffic(watch)
    traffic.run(traffic.unrelated)
    assert not watch.trusted and traffic.changes == 1
    state = watch.state()
    assert state.fallbacks == 1 and state.ttft_scatter > 0.5 and state.failing_workers >= 4


def test_a_few_odd_ones_are_no_failure() -> None:
    watch = ResidualWatch()
    traffic = Traffic(watch)
    traffic.run(lambda worker: (0.1, 60.0) if traffic.rng.random() < 0.2 else traffic.good(worker))
    assert watch.trusted


def tokens_until(traffic: Traffic, pair: Callable[[int], Pair], trusted: bool) -> int:
    for count in range(1, 100_000):
        traffic.run(pair, 1)
        if traffic.watch.trusted is trusted:
            return count
    raise AssertionError("it never changed")


def test_it_takes_longer_to_be_trusted_again_each_time() -> None:
    watch = ResidualWatch()
    traffic = Traffic(watch)
    waits = []
    for fall in range(7):
        tokens_until(traffic, traffic.unrelated, False)
        waits.append(tokens_until(traffic, traffic.good, True))
        assert watch.falls == fall + 1
    assert waits[0] >= TRUSTED * CHECK_EVERY
    assert waits[2] > 1.5 * waits[1] > 1.5 * waits[0]
    assert waits[-1] <= (MOST_TRUSTED + WORKER_WINDOW) * CHECK_EVERY


def test_one_worker_that_is_not_understood_is_shown_and_the_forecast_stays() -> None:
    watch = ResidualWatch()
    traffic = Traffic(watch)
    traffic.run(lambda worker: traffic.unrelated(worker) if worker == 3 else traffic.good(worker))
    assert watch.trusted and watch.state().failing_workers == 1
    watch.on_worker_gone(3)
    assert watch.state().failing_workers == 0


def test_half_of_the_workers_are_enough() -> None:
    watch = ResidualWatch()
    traffic = Traffic(watch)
    traffic.run(lambda worker: traffic.unrelated(worker) if worker % 2 else traffic.good(worker))
    assert not watch.trusted
    failed = watch.state().failed
    assert failed is not None and failed.kind == "worker_ttft"
    assert failed.worker in (1, 3, 5, 7) and failed.scatter >= FAILS


def test_tokens_that_take_otherwise_than_foreseen_count_as_well() -> None:
    watch = ResidualWatch()
    traffic = Traffic(watch)
    for _ in range(ENOUGH):
        watch.on_answer(traffic.usual() / 10, traffic.usual() / 10)
    traffic.run(traffic.good)
    assert not watch.trusted and watch.state().itl_scatter > 0.4
    failed = watch.state().failed
    assert failed is not None and failed.kind == "itl" and failed.worker is None
    assert failed.scatter == watch.state().itl_scatter and failed.took_s != failed.foreseen_s


TIMES = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(st.tuples(st.integers(0, 3), TIMES, TIMES), max_size=300))
def test_whatever_it_is_told_it_changes_slowly_and_says_so(told: list[tuple[int, float, float]]):
    watch, changes, before = ResidualWatch(), [], True
    for turn, (worker, foreseen, took) in enumerate(told):
        watch.on_answer(foreseen, took)
        said = watch.on_first_token(worker, foreseen, took)
        assert said is (watch.trusted is not before)
        if said:
            changes.append(turn)
        before = watch.trusted
    gaps = [later - earlier for earlier, later in zip(changes, changes[1:], strict=False)]
    assert all(gap >= CHECK_EVERY * CONFIRMED for gap in gaps)
    assert watch.state().fallbacks == (len(changes) + 1) // 2


@given(st.lists(st.tuples(TIMES, TIMES), min_size=LEAST, max_size=80), st.floats(0.01, 100))
def test_scatter_does_not_know_a_common_factor(pairs: list[Pair], factor: float):
    plain, scaled = (Residuals(80, 1e-9, LEAST) for _ in range(2))
    for foreseen, took in pairs:
        plain.add(foreseen + 1, took + 1)
        scaled.add(factor * (foreseen + 1), took + 1)
    assert abs(plain.scatter() - scaled.scatter()) < 1e-6


ANY_TIMES = st.floats(-1.0, 1e6, allow_nan=False) | st.sampled_from([0.0, 0.1, 0.2])


@given(
    st.lists(st.tuples(ANY_TIMES, ANY_TIMES), min_size=1, max_size=60),
    st.sampled_from([1, 2, 5, 24, WINDOW]),
    st.sampled_from([1, 2, 24]),
    st.sampled_from([0.002, 0.05]),
)
def test_the_kernel_says_what_its_plain_twin_says(
    pairs: list[Pair], window: int, least: int, slack_s: float
) -> None:
    least = min(least, window)
    kernel, plain = Residuals(window, slack_s, least), ResidualsOracle(window, slack_s, least)
    for foreseen_s, took_s in pairs:
        kernel.add(foreseen_s, took_s)
        plain.add(foreseen_s, took_s)
        assert kernel.count == plain.count
        assert kernel.scatter() == plain.scatter() and kernel.skill() == plain.skill()
        assert kernel.telling() == plain.telling()


def test_residuals_that_cannot_be() -> None:
    for window, least in ((0, 0), (4, 0), (4, 5)):
        with pytest.raises(ValueError, match=f"{least} predictions of {window}"):
            Residuals(window, 0.05, least)
    with pytest.raises(ValueError, match="no prediction"):
        Residuals(4, 0.05, 1).telling()
