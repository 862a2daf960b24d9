"""Laws that a forecast obeys after any sequence of calls, whatever it was told.

A twin hears the same under other worker numbers.
"""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from instruments.forecast_constants import ATTENDED_TOKENS, CHUNK_TOKENS
from oracles.forecast import (
    felt_share,
    held_tokens,
    memory_wait_s,
    missed_objectives,
    missed_weight,
    mutual_decode_s,
    running_mean,
)

from dynamo_router.router.policy._dynamo_cost import pick as pick_number
from dynamo_router.router.policy._forecast import Forecast
from dynamo_router.router.policy.forecast import ForecastParams
from dynamo_router.slots.table import SlotTable

WORKERS = 4
TWIN = [2, 0, 3, 1]  # the numbers of the same workers there
BLOCK_SIZE = 64
REQUEST_IDS = st.integers(0, 9).map("r{}".format)
PAUSES = st.sampled_from([0.0, 0.0, 0.001, 0.03, 0.2, 5.0])
ISLS = st.integers(1, 4000)
BLOCKS = st.integers(0, 20) | st.integers(900, 1100) | st.integers(0, 2000)  # of caches of 10, 1000


def per_worker(values):
    return st.lists(values, min_size=WORKERS, max_size=WORKERS)


def renumbered(values, dtype):
    """An array by worker number, and the twin's."""
    mine = np.array(values, dtype)
    theirs = np.empty(WORKERS, dtype)
    theirs[TWIN] = mine
    return mine, theirs


class ForecastMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.params = ForecastParams()
        self.now = 100.0
        self.kernel, self.twin = Forecast(self.params), Forecast(self.params)
        self.workers = {}  # number -> (budget, blocks)
        self.requests = {}  # id -> (worker, isl)
        self.booked = {}  # id -> when, as long as it has no first token
        self.begun = {}  # id -> when it had its first token
        self.answers = 0  # that took any time
        self.ttfts = []
        self.foreseen = {}
        self.filled = {}  # id -> blocks of answers when it was booked; inf: no size was known
        for number, blocks in enumerate((12, 12, None, 16)):  # hold about what a choice is told
            self.toggle_worker(number, 512, blocks)

    @rule(
        number=st.integers(0, WORKERS - 1),
        budget=st.sampled_from([None, 16, 512]),
        blocks=st.sampled_from([None, 10, 12, 1000]),
    )
    def toggle_worker(self, number, budget, blocks):
        if number in self.workers:
            self.kernel.remove_worker(number)
            self.twin.remove_worker(TWIN[number])
            del self.workers[number]
            for each in [r for r, (worker, _) in self.requests.items() if worker == number]:
                del self.requests[each]
                self.booked.pop(each, None)
                self.begun.pop(each, None)
        else:
            self.kernel.add_worker(number, budget, blocks)
            self.twin.add_worker(TWIN[number], budget, blocks)
            self.workers[number] = budget or 8192, blocks or 0

    @rule(number=st.integers(0, WORKERS - 1), blocks=st.sampled_from([10, 1000]))
    def a_size_becomes_known(self, number, blocks):
        if number in self.workers:
            budget, known = self.workers[number]
            if not known:
                assert self.kernel.describe_worker(number, budget, blocks)
                assert self.twin.describe_worker(TWIN[number], budget, blocks)
                self.workers[number] = budget, blocks
            assert not self.kernel.describe_worker(number, *self.workers[number])

    @rule(seconds=PAUSES)
    def wait(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.workers)
    @rule(request_id=REQUEST_IDS, isl=ISLS, cached=st.floats(0, 1), data=st.data())
    def book(self, request_id, isl, cached, data):
        number = data.draw(st.sampled_from(sorted(self.workers)))
        self.book_both(request_id, number, isl, max(1, isl - int(cached * isl)))

    @rule(request_ids=st.permutations(range(10)), isl=ISLS)
    def book_alike(self, request_ids, isl):
        """One prompt for each worker, so that those differ in little but their blocks in use."""
        for number, place in zip(sorted(self.workers), request_ids, strict=False):
            self.book_both(f"r{place}", number, isl, isl)

    def book_both(self, request_id, number, isl, tokens):
        is_new = request_id not in self.requests
        # Of both, because looking takes timelines to the present, which rounds.
        rows, _ = (
            k.explain(isl, BLOCK_SIZE, None, None, None, WORKERS, self.now)
            for k in (self.kernel, self.twin)
        )
        told = isl, tokens, self.now, 0.0, BLOCK_SIZE
        held = self.held_blocks(number)
        assert self.kernel.book(request_id, number, *told) == is_new
        assert self.twin.book(request_id, TWIN[number], *told) == is_new
        if is_new:
            self.requests[request_id] = number, isl
            self.booked[request_id] = self.now
            self.foreseen.pop(request_id, None)
            self.filled[request_id] = held if self.workers[number][1] else np.inf
            if tokens == isl:  # as a prompt of which nothing is cached
                row = rows[number]
                self.foreseen[request_id] = row["wait_s"] + row["prefill_s"] + row["memory_s"]

    @rule(request_id=REQUEST_IDS)
    def first_token(self, request_id):
        is_queued = request_id in self.booked
        told, twin_told = (k.first_token(request_id, self.now) for k in (self.kernel, self.twin))
        assert (told is not None) == (twin_told is not None) == is_queued
        if is_queued:
            took = self.now - self.booked.pop(request_id)
            self.begun[request_id] = self.now
            self.ttfts.append(took)
            number, foreseen, *_ = told
            most = 0.8 * self.workers[number][1]
            crowded = 0 < most < self.filled[request_id]
            if abs(self.filled[request_id] - most) < 1e-6:  # either: it rounds
                crowded = told[3]
            assert told == (self.requests[request_id][0], foreseen, took, crowded)
            assert twin_told == (TWIN[number], foreseen, took, crowded)
            assert self.foreseen.get(request_id, foreseen) == foreseen >= 0

    @rule(request_id=REQUEST_IDS, tokens=st.sampled_from([0, 1, 7, 8, 300]))
    def end(self, request_id, tokens):
        is_booked = request_id in self.requests
        told, twin_told = (k.end(request_id, self.now, tokens) for k in (self.kernel, self.twin))
        assert (told is not None) == (twin_told is not None) == is_booked
        assert told is None or told[1:] == twin_told[1:] and min(told[1:]) >= 0
        if is_booked:
            self.booked.pop(request_id, None)
            self.answers += self.begun.pop(request_id, self.now) < self.now
            del self.requests[request_id]

    @rule(tokens=st.integers(100, 3000), s_per_token=st.sampled_from([1e-5, 1e-4]))
    def learn_enough(self, tokens, s_per_token):
        """A run of requests one after the other, so that the model can say how long to wait."""
        for turn in range(35 if self.workers else 0):
            name = f"lesson {turn}"
            self.book_both(name, min(self.workers), tokens + turn, tokens)
            self.now += 0.01 + tokens * s_per_token
            self.first_token(name)
            self.now += 0.1 * (turn % 3)
            self.end(name, 8)

    @rule(
        isl=ISLS,
        overlaps=per_worker(st.integers(0, 70)),
        blocks=per_worker(BLOCKS),
        added=per_worker(st.integers(0, 60)),
    )
    def every_estimate_obeys_the_laws(self, isl, overlaps, blocks, added):
        overlap, twin_overlap = renumbered(overlaps, np.uint32)
        in_use, twin_in_use = renumbered(blocks, np.int64)
        blocks = [there + new for there, new in zip(blocks, added, strict=True)]
        block, twin_block = renumbered(blocks, np.float64)
        given = isl, BLOCK_SIZE
        rows = self.kernel.explain(*given, overlap, block, in_use, WORKERS, self.now)
        uncached = self.kernel.explain(*given, None, block, in_use, WORKERS, self.now)
        again = self.kernel.explain(*given, overlap, block, in_use, WORKERS, self.now)
        assert rows == again  # looks only
        twin_given = *given, twin_overlap, twin_block, twin_in_use
        twin_rows = self.twin.explain(*twin_given, WORKERS, self.now)
        assert set(rows) == set(self.workers)
        assert {TWIN[number]: row for number, row in rows.items()} == twin_rows
        for number, row in rows.items():
            assert all(0 <= value < np.inf for value in row.values()), row
            self.adds_up(row, self.kernel.cold_s(isl))
            self.falls_with_cached_blocks(row, uncached[number])
            self.decodes_cost_each_other(number, row, isl)
            self.objectives_are_missed(number, row, isl)
            self.memory_is_waited_for(number, row, blocks[number], in_use[number])
            if not any(worker == number for worker, _ in self.requests.values()):
                cached = overlaps[number] * BLOCK_SIZE
                if len(self.requests) < 2 * len(self.workers) and cached * 4 < isl:
                    cached = 0
                self.is_idle(number, row, isl, isl - min(cached, isl - 1))
        eligible = np.array([number in self.workers for number in range(WORKERS)])
        costs = self.kernel.score(*given, overlap, block, in_use, eligible, self.now)
        for number in range(WORKERS):
            assert costs[number] == (rows[number]["cost"] if eligible[number] else np.inf)

    @rule(
        isl=ISLS,
        overlaps=st.just([0] * WORKERS) | per_worker(st.integers(0, 20)),
        eligible=st.just([True] * WORKERS) | per_worker(st.booleans()),
        held=per_worker(st.tuples(st.integers(0, 10), st.integers(0, 16))),
        unheard=st.none() | per_worker(st.integers(0, 3)),
        u=st.floats(0, 1, exclude_max=True),
    )
    def the_choice_is_a_draw_among_the_costs(self, isl, overlaps, eligible, held, unheard, u):
        for kernel, places in ((self.kernel, range(WORKERS)), (self.twin, TWIN)):
            workers = {places[number]: facts for number, facts in self.workers.items()}
            self.choose(kernel, workers, isl, overlaps, eligible, held, unheard, u)

    def choose(self, kernel, workers, isl, overlaps, eligible, held, unheard, u):
        slots = SlotTable(BLOCK_SIZE)
        for number, (shared, others) in enumerate(held):  # in use, of the prompt's blocks and else
            slots.add_worker(number)
            hashes = np.r_[np.arange(5, 5 + shared), np.arange(50, 50 + others)].astype(np.uint64)
            slots.add_request(f"{number}", number, hashes, isl=1, overlap_blocks=0, now=0.0)
        asked = np.arange(5, 5 + isl // 400, dtype=np.uint64)
        blocks, _ = slots.potential(asked, isl, None)
        mask = np.array(eligible)
        ahead = None if unheard is None else np.array(unheard, np.float64)
        given = isl, BLOCK_SIZE, np.array(overlaps, np.uint32)
        costs = kernel.score(*given, blocks, slots.active_blocks(), mask, self.now)
        costs[[number not in workers for number in range(WORKERS)]] = np.inf
        if ahead is not None:
            costs += 0.01 * ahead
        number = kernel.choose(*given, slots.native, asked, mask, ahead, 0.01, self.now, u)
        assert number == pick_number(costs, 0.0, u)
        if number >= 0:
            bounded = workers[number][1] > 0
            assert kernel.chosen_blocks == (blocks[number] if bounded else 0)
            assert slots.potential_of(asked, number) == blocks[number]

    def adds_up(self, row, cold):
        usual = self.kernel.learnt()[2]
        waiting = sum(row[term] for term in ("wait_s", "unsure_s", "memory_s"))
        params, own = self.params, row["prefill_s"]
        longer = 1 + waiting / usual + own / (usual + cold)
        rest = params.prefill_weight * row["work_s"] + params.decode_weight * row["decode_s"]
        weight = params.miss_weight * missed_weight(len(self.requests), len(self.workers))
        rest += weight * row["missed"] + row["delay_s"] + row["crowding_s"]
        assert row["cost"] == pytest.approx((waiting + own) * longer + rest)

    def falls_with_cached_blocks(self, row, uncached):
        for term in ("wait_s", "unsure_s", "memory_s", "crowding_s", "decode_s", "missed"):
            assert row[term] == uncached[term]
        for term in ("prefill_s", "delay_s", "work_s"):
            assert row[term] <= uncached[term]
        assert row["cost"] <= uncached["cost"] + 1e-12

    def decodes_cost_each_other(self, number, row, isl):
        _, theta, _, output, *_ = self.kernel.learnt()
        contexts = [isl for worker, isl in self.requests.values() if worker == number]
        felt = felt_share(len(self.requests), len(self.workers))
        mutual = mutual_decode_s(theta, contexts, isl + output / 2, felt * output / 2)
        slowness = self.kernel.slowness(number)
        assert row["decode_s"] == pytest.approx(slowness * mutual, rel=1e-6, abs=1e-9)

    def objectives_are_missed(self, number, row, isl):
        theta, stretch = self.kernel.learnt()[1], self.kernel.learnt()[5]
        contexts = [isl for worker, isl in self.requests.values() if worker == number]
        scale = self.kernel.slowness(number) * stretch / self.params.itl_objective_s
        expected = missed_objectives(theta, scale, contexts, isl)
        assert row["missed"] == pytest.approx(expected, rel=1e-6, abs=1e-9)

    def ages(self, number):
        """Seconds since the first tokens of a worker's requests; None of those that have none.

        Of all while too few answers have ended.
        """
        begun = self.begun if self.answers >= 30 else {}
        mine = [each for each, (worker, _) in self.requests.items() if worker == number]
        return [self.now - begun[each] if each in begun else None for each in mine]

    def held_blocks(self, number):
        """Blocks of answers there."""
        output, answer_s = self.kernel.learnt()[3:5]
        return held_tokens(self.ages(number), answer_s, output) / BLOCK_SIZE

    def memory_is_waited_for(self, number, row, blocks, in_use):
        """By the prompt itself, and then by those who come while it is there."""
        _, capacity = self.workers[number]
        count = sum(worker == number for worker, _ in self.requests.values())
        output, answer_s = self.kernel.learnt()[3:5]
        waits = [0.0, 0.0]
        if count and capacity:
            given = answer_s, output, BLOCK_SIZE
            waits = [
                memory_wait_s(count, capacity, there, *given) if there else 0.0
                for there in (blocks, in_use)
            ]
        margin = 1e-3 * waits[0] + 2e-6 * answer_s
        assert row["memory_s"] == pytest.approx(waits[0], abs=margin)
        others = count * max(0.0, waits[0] - waits[1])
        assert row["crowding_s"] == pytest.approx(others, abs=2 * count * margin)

    def is_idle(self, number, row, isl, tokens):
        """An empty engine: nothing is waited for, and a step for each budget of tokens."""
        waits = ("wait_s", "unsure_s", "memory_s", "delay_s", "decode_s")
        assert [row[term] for term in waits] == [0.0] * len(waits)
        step, chunk, _, attention = self.kernel.learnt()[0]
        steps = -(-tokens // self.workers[number][0])
        seconds = steps * max(1e-6, step) + tokens * chunk / CHUNK_TOKENS
        seconds += tokens * (isl - tokens / 2) * attention / ATTENDED_TOKENS
        slowness = self.kernel.slowness(number)
        assert row["prefill_s"] == pytest.approx(slowness * seconds)
        filled = seconds + (tokens / self.workers[number][0] - steps) * max(1e-6, step)
        paid = min(1.0, len(self.requests) / len(self.workers) / 2)  # two of a worker take all
        assert row["work_s"] == pytest.approx(slowness * filled * paid, rel=1e-5, abs=1e-9)

    @rule(eligible=per_worker(st.booleans()), blocks=per_worker(BLOCKS))
    def a_fleet_is_free_when_one_of_its_workers_is(self, eligible, blocks):
        def until_free(wanted):
            mask, twin_mask = renumbered(wanted, np.bool_)
            count, twin_count = renumbered(blocks, np.int64)
            seconds = self.kernel.seconds_until_free(mask, count, self.now)
            assert seconds == self.twin.seconds_until_free(twin_mask, twin_count, self.now)
            # Who leaves some to others waits no less.
            assert self.kernel.seconds_until_free(mask, count, self.now, True) >= seconds
            return seconds

        usable = [n for n in range(WORKERS) if eligible[n] and n in self.workers]
        alone = {n: until_free([other == n for other in range(WORKERS)]) for n in usable}
        seconds = until_free(eligible)
        assert seconds in alone.values() if usable else seconds == 0
        # Later than the soonest only where that one owes a first token.
        owing = {self.requests[each][0] for each in self.booked}
        assert seconds <= min((alone[n] for n in usable if n not in owing), default=np.inf)
        assert seconds >= min(alone.values(), default=0)
        for number in usable:
            capacity = self.workers[number][1]
            grown = blocks[number] + self.held_blocks(number)
            is_full = len(self.ages(number)) > 0 and 0 < 0.95 * capacity <= grown
            assert (alone[number] == np.inf) == is_full
            mask, count = (
                renumbered(each, dtype)[0]
                for each, dtype in (
                    ([other == number for other in range(WORKERS)], np.bool_),
                    (blocks, np.int64),
                )
            )
            found = self.kernel.seconds_until_free(mask, count, self.now, memory_only=True)
            assert found == (np.inf if is_full else 0.0)
            if len(self.ttfts) < 30 and not is_full:
                assert alone[number] == 0

    @invariant()
    def what_was_learnt_is_sane(self):
        for kernel in (self.kernel, self.twin):
            prefill, decode, ttft, output, answer, stretch = kernel.learnt()
            assert all(0 <= each < np.inf for each in (*prefill, *decode))
            assert all(0 < each < np.inf for each in (output, answer, stretch))
            assert ttft == pytest.approx(running_mean(self.params.ttft_s, self.ttfts))
            assert len(kernel) == len(self.requests)
        assert self.kernel.learnt() == self.twin.learnt()

    @invariant()
    def sums_are_right(self):
        self.kernel.check_integrity()
        self.twin.check_integrity()


TestForecast = ForecastMachine.TestCase
TestForecast.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
