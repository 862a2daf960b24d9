"""The forecast agrees with the oracle after any sequence of calls."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracles.forecast import OracleForecast

from dynamo_router.router.policy._forecast import Forecast
from dynamo_router.router.policy.forecast import ForecastParams

WORKERS = 4
REQUEST_IDS = st.integers(0, 9).map("r{}".format)
PAUSES = st.sampled_from([0.0, 0.0, 0.001, 0.03, 0.2, 5.0])


class ForecastMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        params = ForecastParams()
        self.now = 100.0
        self.kernel, self.oracle = Forecast(params), OracleForecast(params)
        self.toggle_worker(0, 512, 100)
        self.toggle_worker(2, None, None)

    @rule(
        number=st.integers(0, WORKERS - 1),
        budget=st.sampled_from([None, 16, 512]),
        blocks=st.sampled_from([None, 10, 1000]),
    )
    def toggle_worker(self, number, budget, blocks):
        if number in self.oracle.lanes:
            self.kernel.remove_worker(number)
            self.oracle.remove_worker(number)
        else:
            self.kernel.add_worker(number, budget, blocks)
            self.oracle.add_worker(number, budget, blocks)

    @rule(seconds=PAUSES)
    def wait(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.oracle.lanes)
    @rule(request_id=REQUEST_IDS, isl=st.integers(1, 4000), cached=st.floats(0, 1), data=st.data())
    def book(self, request_id, isl, cached, data):
        number = data.draw(st.sampled_from(sorted(self.oracle.lanes)))
        self.book_both(request_id, number, isl, max(1, isl - int(cached * isl)))

    def book_both(self, request_id, number, isl, tokens):
        assert self.kernel.book(request_id, number, isl, tokens, self.now) == self.oracle.book(
            request_id, number, isl, tokens, self.now
        )

    @rule(request_id=REQUEST_IDS)
    def first_token(self, request_id):
        assert self.kernel.first_token(request_id, self.now) == self.oracle.first_token(
            request_id, self.now
        )

    @rule(request_id=REQUEST_IDS, tokens=st.sampled_from([0, 1, 7, 8, 300]))
    def end(self, request_id, tokens):
        assert self.kernel.end(request_id, self.now, tokens) == self.oracle.end(
            request_id, self.now, tokens
        )

    @rule(
        isl=st.integers(1, 4000),
        overlaps=st.lists(st.integers(0, 70), min_size=WORKERS, max_size=WORKERS),
        blocks=st.lists(st.integers(0, 2000), min_size=WORKERS, max_size=WORKERS),
    )
    def costs_agree(self, isl, overlaps, blocks):
        size = self.kernel.size
        eligible = np.array([number in self.oracle.lanes for number in range(size)])
        given = (
            isl,
            64,
            np.array(overlaps[:size], np.uint32),
            np.array(blocks[:size], np.float64),
        )
        costs = self.kernel.score(*given, eligible, self.now)
        explained = self.kernel.explain(*given, size, self.now)
        for number in range(size):
            if not eligible[number]:
                assert costs[number] == np.inf
                continue
            expected = self.oracle.cost(number, isl, 64, overlaps[number], blocks[number], self.now)
            np.testing.assert_allclose(costs[number], expected, rtol=1e-6, atol=1e-9)
            assert explained[number]["cost"] == costs[number]

    @rule(
        eligible=st.lists(st.booleans(), min_size=WORKERS, max_size=WORKERS),
        blocks=st.lists(st.integers(0, 1200), min_size=WORKERS, max_size=WORKERS),
    )
    def room_agrees(self, eligible, blocks):
        size = self.kernel.size
        given = np.array(eligible[:size], np.bool_)
        numbers = [number for number in self.oracle.lanes if given[number]]
        room = self.kernel.seconds_until_free(given, np.array(blocks[:size], np.int64), self.now)
        expected = self.oracle.room_in(numbers, blocks, self.now)
        np.testing.assert_allclose(room, expected, rtol=1e-6, atol=1e-9)

    @rule(tokens=st.integers(100, 3000), pace=st.sampled_from([1e-5, 1e-4]))
    def learn_enough(self, tokens, pace):
        """A run of requests one after the other, so that the model can say how long to wait."""
        for turn in range(35 if self.oracle.lanes else 0):
            name, number = f"lesson {turn}", min(self.oracle.lanes)
            self.book_both(name, number, tokens + turn, tokens)
            self.now += 0.01 + tokens * pace
            self.first_token(name)
            self.end(name, 8)

    @invariant()
    def models_agree(self):
        prefill, decode, ttft, output, answer = self.kernel.learnt()
        np.testing.assert_allclose(prefill, self.oracle.prefill.theta, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(decode, self.oracle.decode.theta, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(
            [ttft, output, answer], [self.oracle.ttft, self.oracle.output, self.oracle.answer]
        )
        assert len(self.kernel) == len(self.oracle.where)

    @invariant()
    def sums_are_right(self):
        self.kernel.check_integrity()


TestForecast = ForecastMachine.TestCase
TestForecast.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
