"""The policy `forecast`: what it learns, what it foresees, and where it sends."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from oracles.forecast import missed_weight
from support.policy.routers import router_among

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError
from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.candidates import WorkerLike
from dynamo_router.router.policy._forecast import Forecast
from dynamo_router.router.policy.dynamo_cost import Blocks, Floats, Mask
from dynamo_router.router.policy.forecast import ForecastParams, ForecastPolicy
from dynamo_router.slots.table import SlotTable

BLOCK = 16
FACTS = {"total_kv_blocks": 1000, "max_num_batched_tokens": 512}


@pytest.fixture
def router(clock: ManualClock) -> Iterator[KvRouter]:
    with router_among(0, 1, clock=clock, seed=3, facts=FACTS, block_size=BLOCK) as made:
        yield made


def policy_of(router: KvRouter) -> ForecastPolicy:
    policy = router._policy
    assert isinstance(policy, ForecastPolicy)
    return policy


def prompt(number: int, tokens: int) -> Any:
    return np.full(tokens, number + 1, np.uint32) * 7 + np.arange(tokens, dtype=np.uint32) % 5


def terms(router: KvRouter, tokens: int, **how: Any) -> list[dict[str, float]]:
    return terms_of(router, prompt(999, tokens), **how)


def terms_of(router: KvRouter, asked: Any, **how: Any) -> list[dict[str, float]]:
    found = router.explain(asked, **how).candidates
    return [dict(each.policy_terms or {}) for each in found]


class Engines:
    """Workers that compute one prompt after the other, at a pace of their own."""

    def __init__(self, router: KvRouter, clock: ManualClock, token_s: dict[int, float]) -> None:
        self.router, self.clock, self.token_s = router, clock, token_s
        self.sent: dict[int, int] = {}

    def serve(self, count: int, tokens: int, answer_s: float = 0.0) -> None:
        for turn in range(count):
            request = f"request-{len(self.sent)}-{turn}"
            length = tokens + 64 * (turn % 5)
            worker = self.router.best_worker(prompt(turn * 31, length), request)[0]
            self.sent[worker] = self.sent.get(worker, 0) + 1
            self.clock.advance(0.01 + length * self.token_s[worker])
            self.router.mark_prefill_complete(request)
            self.clock.advance(answer_s)
            self.router.free(request, output_tokens=20)
            self.clock.advance(1.0)


def test_a_booking_keeps_the_least_that_was_foreseen_of_any_worker(router: KvRouter) -> None:
    for number, worker in enumerate([0, 0, 1]):
        router.decide(prompt(number, 600), str(number), pinned_worker=worker)
        own, soonest = router.foreseen_ttft_s(str(number)) or (0.0, 1.0)
        assert own == soonest > 0.0  # it could go nowhere else
    for number in range(3, 6):
        asked = prompt(number, 600 + 100 * number)
        rows = terms_of(router, asked)
        foreseen = [row["wait_s"] + row["prefill_s"] + row["memory_s"] for row in rows]
        chosen = router.decide(asked, str(number)).number
        found = router.foreseen_ttft_s(str(number))
        assert found == (pytest.approx(foreseen[chosen]), pytest.approx(min(foreseen)))
    assert router.foreseen_ttft_s("none") is None


def test_of_a_request_whose_answer_alone_is_expected_no_first_token_is_foreseen() -> None:
    kernel = Forecast(ForecastParams())
    kernel.add_worker(0, None, None)
    kernel.expect("answer", 0, 100, 1.0)
    assert kernel.foreseen_s("answer") is None


def test_it_learns_how_long_a_token_takes(router: KvRouter, clock: ManualClock) -> None:
    Engines(router, clock, {0: 1e-4, 1: 1e-4}).serve(300, 100, answer_s=0.2)
    learnt = policy_of(router).learnt()
    foreseen = terms(router, 300)[0]
    assert foreseen["wait_s"] + foreseen["prefill_s"] == pytest.approx(0.01 + 0.03, rel=0.05)
    assert 0.03 < learnt.ttft_s < 0.05  # of the 0.3 that it began with
    assert 20 < learnt.output_tokens < 40


def test_it_learns_which_worker_is_slow(router: KvRouter, clock: ManualClock) -> None:
    engines = Engines(router, clock, {0: 1e-4, 1: 4e-4})
    engines.serve(200, 200)
    slow, fast = policy_of(router).slowness(1), policy_of(router).slowness(0)
    assert slow > 1.1 * fast
    assert engines.sent[0] > 5 * engines.sent[1]


def test_equal_workers_stay_equal(router: KvRouter, clock: ManualClock) -> None:
    engines = Engines(router, clock, {0: 1e-4, 1: 1.05e-4})
    engines.serve(200, 200)
    assert min(engines.sent.values()) > 60


def test_what_all_prompts_begin_with_does_not_bind_them_to_one_idle_worker() -> None:
    """A block of a chat template is cached where the first conversation was; so all others would
    follow it there, and evict each other beside empty caches."""
    kernel, sent = Forecast(ForecastParams()), np.zeros(4, int)
    for worker in range(4):
        kernel.add_worker(worker, 8192, None)
    eligible, slots = np.ones(4, np.bool_), SlotTable(BLOCK)
    for worker in range(4):
        slots.add_worker(worker)

    def chosen(overlap: int, u: float) -> int:
        overlaps = np.array([0, overlap, 0, 0], np.uint32)
        hashes = np.zeros(0, np.uint64)
        return kernel.choose(
            1600, BLOCK, overlaps, slots.native, hashes, eligible, None, 0.0, 1.0, u
        )

    for u in np.linspace(0.0, 0.99, 40):
        sent[chosen(24, u)] += 1
        assert chosen(25, u) == 1
    assert sent.tolist() == [10, 10, 10, 10]
    for number in range(8):  # others pay for what is computed again
        kernel.expect(f"{number}", number % 2 * 2, 10, 0.5)
    assert {chosen(24, u) for u in np.linspace(0.0, 0.99, 40)} == {1}


def test_what_all_prompts_begin_with_draws_none_to_a_busy_worker() -> None:
    """An idle one that has as much cached is no worse; what it takes is foreseen with that."""
    kernel, isl, cached = Forecast(ForecastParams()), 32_000, 480
    overlaps, eligible = np.full(2, cached, np.uint32), np.ones(2, np.bool_)
    for worker in range(2):
        kernel.add_worker(worker, 8192, None)
    kernel.expect("decoding", 0, 10, 0.5)

    def costs(overlaps: Blocks | None, eligible: Mask) -> Floats:
        return kernel.score(isl, BLOCK, overlaps, None, None, eligible, 1.0)

    assert costs(overlaps, eligible).argmin() == 1
    busy = np.array([True, False])  # no idle one may take it: then it counts
    assert costs(overlaps, busy)[0] < costs(None, busy)[0]
    cold = kernel.explain(isl, BLOCK, None, None, None, 2, 1.0)[1]["prefill_s"]
    assert kernel.explain(isl, BLOCK, overlaps, None, None, 2, 1.0)[1]["prefill_s"] == cold
    alone = kernel.explain(isl, BLOCK, overlaps, None, None, 2, 1.0, 1)[1]
    assert alone["prefill_s"] < 0.8 * cold


def test_a_stall_does_not_make_a_worker_slow(router: KvRouter, clock: ManualClock) -> None:
    engines = Engines(router, clock, {0: 1e-4, 1: 1e-4})
    engines.serve(100, 200)
    before = engines.sent[1]
    engines.token_s[1] = 1e-2
    while engines.sent[1] == before:
        engines.serve(1, 200)
    engines.token_s[1] = 1e-4
    assert policy_of(router).slowness(1) == 1.0
    engines.sent.clear()
    engines.serve(100, 200)
    assert min(engines.sent.values()) > 30


def test_what_fills_a_cache_or_more_waits_as_if_it_filled_one(
    router: KvRouter, clock: ManualClock
) -> None:
    router.best_worker(prompt(0, 100), "it tells the block size")
    policy = policy_of(router)
    cache, answer_s = 1000 * BLOCK, policy.learnt().answer_s
    stays = [policy._forecast.stay_s(tokens) for tokens in (cache // 4, cache, 4 * cache)]
    assert stays == pytest.approx([answer_s / 4, answer_s, answer_s])


def test_waiting_shrinks_while_time_passes(router: KvRouter, clock: ManualClock) -> None:
    router.best_worker(prompt(0, 4000), "long", pinned_worker=0)
    clock.advance(0.001)
    before = terms(router, 100)[0]["wait_s"]
    clock.advance(0.05)
    after = terms(router, 100)[0]["wait_s"]
    assert before - after == pytest.approx(0.05)
    assert terms(router, 100)[1]["wait_s"] == 0.0
    assert router.best_worker(prompt(5, 100))[0] == 1


def test_a_prompt_waits_for_its_cache_only_while_that_is_cheaper(
    router: KvRouter, clock: ManualClock
) -> None:
    def cached(worker: WorkerLike, tokens: int, request: str) -> int:
        router.best_worker(prompt(1, tokens), request, pinned_worker=worker)
        return router.best_worker(prompt(1, tokens))[0]

    made = KvRouter(KvRouterConfig(block_size=BLOCK, use_kv_events=False), clock=clock, seed=3)
    with made as router:
        for worker_id in range(2):
            router.add_worker(worker_id, max_num_batched_tokens=512)
            for number in range(8):  # who would pay for computing it again
                request = f"{worker_id} {number}"
                router.best_worker(prompt(100 + number, 10), request, pinned_worker=worker_id)
                router.mark_prefill_complete(request)
        assert cached((0, 0), 4096, "first") == 0
        clock.advance(1.0)
        router.mark_prefill_complete("first")
        assert router.best_worker(prompt(1, 4096))[:2] == (0, 0)
        # Now so much is queued there that to compute it elsewhere is the lesser evil.
        for number in range(40):
            router.best_worker(prompt(50 + number, 4096), f"q{number}", pinned_worker=0)
        assert router.best_worker(prompt(1, 4096))[0] == 1


def test_computing_again_costs_more_the_more_there_are_to_pay_for_it() -> None:
    """So a session leaves a busy worker for an idle one where few requests are under way."""
    kernel = Forecast(ForecastParams())
    for worker in range(4):
        kernel.add_worker(worker, 8192, None)

    def work_s() -> float:
        return kernel.explain(2000, BLOCK, None, None, None, 4, 1.0)[0]["work_s"]

    assert work_s() == 0.0
    found = []
    for number in range(40):
        kernel.book(str(number), number % 4, 10, 10, 1.0)
        found.append(work_s())
    assert found == sorted(found) and found[0] > 0.0
    # All of its tokens' time, and that of the step which they fill in part, at last.
    full = 2000 * kernel.learnt()[0][1] / 8192 + kernel.learnt()[0][0] * 2000 / 8192
    assert found[-1] == pytest.approx(full) and found[3] == pytest.approx(full / 2)


def test_who_would_fill_up_the_step_of_others_pays_for_it(
    router: KvRouter, clock: ManualClock
) -> None:
    router.best_worker(prompt(0, 100), "small", pinned_worker=0)
    mine, other = terms(router, 400)  # at the same moment: it would be in the same step
    assert mine["delay_s"] > 0 and other["delay_s"] == 0
    clock.advance(0.001)  # the step has begun without it
    assert terms(router, 400)[0]["delay_s"] == 0


def test_where_the_cache_is_full_a_request_waits_for_answers_to_end(
    router: KvRouter, clock: ManualClock
) -> None:
    for number in range(4):
        router.best_worker(prompt(number, 250 * BLOCK), f"r{number}", pinned_worker=0)
        clock.advance(1.0)
        router.mark_prefill_complete(f"r{number}")
    full, free = terms(router, 100)
    assert full["memory_s"] > 0 and free["memory_s"] == 0
    assert router.best_worker(prompt(77, 100))[0] == 1


def test_room_is_short_before_a_cache_is_full(router: KvRouter, clock: ManualClock) -> None:
    waits = []
    for number in range(4):
        router.best_worker(prompt(number, 220 * BLOCK), f"r{number}", pinned_worker=0)
        clock.advance(1.0)
        router.mark_prefill_complete(f"r{number}")
        waits.append(terms(router, 100)[0]["memory_s"])
    assert (
        waits == sorted(waits) and waits[0] == 0 < waits[-1] < policy_of(router).learnt().answer_s
    )


def test_a_request_is_held_where_answers_go_on_longer_than_usual(
    router: KvRouter, clock: ManualClock
) -> None:
    """Their tokens fill the caches by and by, which is booked nowhere."""
    for turn in range(30):
        router.best_worker(prompt(turn, BLOCK), f"usual{turn}", pinned_worker=turn % 2)
        router.mark_prefill_complete(f"usual{turn}")
        clock.advance(1.0)
        router.free(f"usual{turn}", output_tokens=20 * BLOCK)
    for number in range(8):
        router.best_worker(prompt(number, 200 * BLOCK), f"long{number}", pinned_worker=number % 2)
        router.mark_prefill_complete(f"long{number}")
    waits = []
    for _ in range(10):
        waits.append(router.seconds_until_free())
        clock.advance(2.0)
    assert waits[0] == 0.0 and waits[-1] == math.inf


def test_the_choice_knows_that_room_is_short(router: KvRouter, clock: ManualClock) -> None:
    """Two workers that differ in nothing but the blocks in use: one's requests share theirs."""
    for number in range(4):
        for worker in range(2):
            name, told = f"r{number}-{worker}", prompt(number if worker == 0 else 0, 220 * BLOCK)
            router.best_worker(told, name, pinned_worker=worker)
            clock.advance(1.0)
            router.mark_prefill_complete(name)
    full, roomy = terms(router, 100)
    assert full["memory_s"] > roomy["memory_s"] and full["cost"] > roomy["cost"]
    assert {router.best_worker(prompt(999, 100))[0] for _ in range(20)} == {1}


def test_a_prompt_goes_where_it_takes_no_room_from_those_who_come(
    router: KvRouter, clock: ManualClock
) -> None:
    """Two workers in whose caches room is as short: one's requests share the prompt's blocks."""
    for number in range(4):
        for worker in range(2):
            told = prompt(number + 10 * worker, 220 * BLOCK)
            router.best_worker(told, f"r{number}-{worker}", pinned_worker=worker)
            clock.advance(1.0)
            router.mark_prefill_complete(f"r{number}-{worker}")
    asked = prompt(10, 100 * BLOCK)  # in use on the second, though by the index no cache has it
    other, holder = (each.policy_terms or {} for each in router.explain(asked).candidates)
    assert (
        holder["crowding_s"] == 0 < other["crowding_s"]
        and holder["prefill_s"] == other["prefill_s"]
    )
    assert other["crowding_s"] == pytest.approx(4 * (other["memory_s"] - holder["memory_s"]))
    assert router.best_worker(asked)[0] == 1


def test_a_worker_that_owes_first_tokens_is_avoided_the_more_the_later_they_are(
    router: KvRouter, clock: ManualClock
) -> None:
    for worker in (0, 1):
        router.best_worker(prompt(worker, 100), f"r{worker}", pinned_worker=worker)
    clock.advance(0.03)
    router.mark_prefill_complete("r1")
    waits = []
    for _ in range(3):
        clock.advance(1.0)
        waits.append(terms(router, 100)[0]["wait_s"])
    assert waits[0] < waits[1] < waits[2]
    assert terms(router, 100)[1]["wait_s"] < 0.1


def test_callers_who_never_report_first_tokens_are_balanced_all_the_same(
    router: KvRouter, clock: ManualClock
) -> None:
    sent = [0, 0]
    for number in range(60):
        request = f"r{number}"
        sent[router.best_worker(prompt(number, 300), request)[0]] += 1
        clock.advance(0.02)
        if number >= 10:
            router.free(f"r{number - 10}")
    assert min(sent) >= 20
    policy_of(router).check_integrity()
    assert policy_of(router).learnt().step_s == ForecastParams().step_s


def test_what_was_cancelled_waits_no_more(router: KvRouter, clock: ManualClock) -> None:
    router.best_worker(prompt(0, 300), "a", pinned_worker=0)
    clock.advance(0.001)
    router.best_worker(prompt(1, 5000), "b", pinned_worker=0)
    long = terms(router, 100)[0]["wait_s"]
    assert router.free("b")
    assert terms(router, 100)[0]["wait_s"] < long / 4
    policy_of(router).check_integrity()


def test_a_worker_that_left_takes_its_requests_along(router: KvRouter, clock: ManualClock) -> None:
    router.best_worker(prompt(0, 5000), "a", pinned_worker=0)
    assert router.remove_worker(0) == ["a"]
    router.add_worker(5)
    clock.advance(0.001)
    assert [each["wait_s"] for each in terms(router, 100)] == [0.0, 0.0]
    assert not router.mark_prefill_complete("a") and not router.free("a")
    policy_of(router).check_integrity()


def test_an_explanation_adds_up(router: KvRouter, clock: ManualClock) -> None:
    router.best_worker(prompt(0, 2000), "a", pinned_worker=0)
    clock.advance(0.001)
    found = router.explain(prompt(1, 500))
    assert found.policy == "forecast"
    assert [each.worker_id for each in found.cheapest] == [1]
    params = ForecastParams()
    policy = policy_of(router)
    usual, cold = policy.learnt().ttft_s, policy.cold_s(500)
    for each in found.candidates:
        own = each.policy_terms
        assert own is not None
        ttft = sum(own[term] for term in ("wait_s", "unsure_s", "prefill_s", "memory_s"))
        rest = params.prefill_weight * own["work_s"] + params.decode_weight * own["decode_s"]
        weight = params.miss_weight * missed_weight(requests=1, workers=2)
        rest += weight * own["missed"] + own["crowding_s"]
        share = (ttft - own["prefill_s"]) / usual + own["prefill_s"] / (usual + cold)
        assert own["cost"] == pytest.approx(ttft * (1 + share) + own["delay_s"] + rest)


@pytest.mark.parametrize(("slo_itl_ms", "missed"), [(1000.0, 0.0), (0.01, 1.0)])
def test_the_objective_of_the_settings_is_the_one_that_is_missed(
    slo_itl_ms: float, missed: float, clock: ManualClock
) -> None:
    admission = AdmissionConfig(slo_itl_ms=slo_itl_ms)
    config = KvRouterConfig(block_size=BLOCK, admission=admission)
    with KvRouter(config, clock=clock, seed=3) as router:
        router.add_worker(0)
        assert terms(router, 100)[0]["missed"] == pytest.approx(missed, abs=1e-3)


@pytest.mark.parametrize("key", ["prefill_weight", "step_s", "token_s", "output_tokens"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_a_weight_that_is_no_weight_is_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"forecast: {key} .* must be finite and not negative"):
        ForecastParams(**{key: value})


def test_a_belief_of_zero_is_refused_but_not_a_weight() -> None:
    ForecastParams(prefill_weight=0.0, decode_weight=0.0)
    with pytest.raises(ConfigError, match="step_s"):
        ForecastParams(step_s=0.0)


def test_the_kernel_refuses_what_cannot_be() -> None:
    kernel = Forecast(ForecastParams())
    kernel.add_worker(0, None, None)
    everyone = np.ones(1, np.bool_)
    with pytest.raises(ValueError, match="worker number 0 is in use"):
        kernel.add_worker(0, None, None)
    with pytest.raises(ValueError, match="there is no worker number 3"):
        kernel.book("r", 3, 10, 10, 0.0)
    for tokens in (0, 11):
        with pytest.raises(ValueError, match=f"{tokens} of 10 tokens cannot be computed"):
            kernel.book("r", 0, 10, tokens, 0.0)
    for now in (math.nan, math.inf):
        with pytest.raises(ValueError, match="now must be finite"):
            kernel.book("r", 0, 10, 10, now)
        with pytest.raises(ValueError, match="now must be finite"):
            kernel.score(10, 16, None, None, None, everyone, now)
    with pytest.raises(ValueError, match="isl must be at least 1"):
        kernel.score(0, 16, None, None, None, everyone, 0.0)
    with pytest.raises(ValueError, match="an entry for each of 1 worker numbers"):
        kernel.score(10, 16, np.zeros(4, np.uint32), None, None, everyone, 0.0)
    assert len(kernel) == 0


def test_an_outlier_does_not_turn_the_model_over(router: KvRouter, clock: ManualClock) -> None:
    engines = Engines(router, clock, {0: 1e-4, 1: 1e-4})
    engines.serve(200, 200)
    before = terms(router, 300)[0]["prefill_s"]
    router.best_worker(prompt(3, 200), "stalled", pinned_worker=0)
    clock.advance(60.0)
    router.mark_prefill_complete("stalled")
    router.free("stalled")
    engines.serve(5, 200)
    assert terms(router, 300)[1]["prefill_s"] == pytest.approx(before, rel=0.3)


def test_a_request_that_ends_in_its_first_step_leaves_no_step_behind() -> None:
    kernel = Forecast(ForecastParams())
    kernel.add_worker(0, None, None)
    everyone = np.ones(1, np.bool_)
    kernel.book("first", 0, 10, 10, 0.0)
    # Its prompt is computed, it is not told yet.
    kernel.score(10, 16, None, None, None, everyone, 5.0)
    kernel.book("second", 0, 10, 10, 5.0)
    kernel.end("second", 5.0, 0)
    kernel.first_token("first", 5.0)
    kernel.end("first", 5.0, 1)
    kernel.check_integrity()
    [row] = kernel.explain(10, 16, None, None, None, 1, 5.001).values()
    assert row["wait_s"] == 0
