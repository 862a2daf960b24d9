"""Requests that would miss objectives wherever they went are refused, where somebody named one."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import NoWorkersError
from dynamo_router.router.admission import AdmissionConfig, Objectives
from dynamo_router.router.admission.objectives import read_objectives
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.decider import new_queue, ticket_of
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.placement import Placement
from dynamo_router.router.policy import ForecastPolicy

BLOCK = 16
TOKENS = list(range(10 * BLOCK))


def taught(
    *,
    sheds: bool | None,
    itl_s: float,
    answers: int = 60,
    slo_itl_ms: float | None = 25.0,
    slo_ttft_ms: float | None = None,
) -> tuple[KvRouter, ManualClock]:
    """A router that has seen so many answers of a worker, one at a time, at this pace."""
    clock = ManualClock(1.0)
    admission = AdmissionConfig(shed=sheds, slo_itl_ms=slo_itl_ms, slo_ttft_ms=slo_ttft_ms)
    config = KvRouterConfig(block_size=BLOCK, seed=1, use_kv_events=False, admission=admission)
    router = KvRouter(config, clock=clock)
    router.add_worker(0)
    for turn in range(answers):
        router.decide(TOKENS, f"answer {turn}")
        clock.advance(0.02)
        router.mark_prefill_complete(f"answer {turn}")
        clock.advance(10 * itl_s)
        router.free(f"answer {turn}", output_tokens=11)
        clock.advance(0.1)
    return router, clock


def refusals(router: KvRouter, clock: ManualClock, asked: Objectives, waited_s: float = 0.0) -> int:
    """Of two requests, the second beside the first, how many are refused."""
    for turn in range(2):
        placement = Placement(
            router.prompt(TOKENS), f"r{turn}", clock.now() - waited_s, objectives=asked
        )
        try:
            router.place(placement)
        except NoWorkersError as error:
            assert error.overloaded
    return router.limits.requests_shed


@pytest.mark.parametrize("sheds", [True, None])
def test_what_would_be_too_slow_is_refused_and_counted(sheds: bool | None) -> None:
    router, _ = taught(sheds=sheds, itl_s=0.04)
    router.decide(TOKENS, "first")  # nobody is there
    for _ in range(2):
        with pytest.raises(NoWorkersError) as raised:
            router.decide(TOKENS, "second")
        assert raised.value.overloaded
        # Until as many of the one answer there have ended as too many would miss theirs.
        assert 0.0 < (raised.value.retry_after_s or 0.0) <= 256 * 0.02
    assert router.limits.requests_shed == 2
    assert router.slots.worker_of("second") is None
    router.free("first")
    router.decide(TOKENS, "second")


@pytest.mark.parametrize(
    ("sheds", "itl_s", "answers"), [(False, 0.04, 60), (True, 0.01, 60), (True, 0.04, 20)]
)
def test_nobody_is_refused_unasked_or_in_time_or_before_much_was_seen(
    sheds: bool, itl_s: float, answers: int
) -> None:
    router, _ = taught(sheds=sheds, itl_s=itl_s, answers=answers)
    for turn in range(2):
        router.decide(TOKENS, str(turn))
    assert router.limits.requests_shed == 0


def test_explanations_refuse_nobody() -> None:
    router, _ = taught(sheds=True, itl_s=0.04)
    router.decide(TOKENS, "first")
    (candidate,) = router.explain(TOKENS).candidates
    assert candidate.policy_terms["missed"] > 0.7
    assert router.limits.requests_shed == 0


def refused_beside_five(router: KvRouter) -> bool:
    """Whether a prompt of 20 000 tokens is, which makes steps 2 ms longer for five answers."""
    for turn in range(5):
        router.decide(TOKENS, f"beside {turn}", pinned_worker=0)
    try:
        router.decide(list(range(20_000)), "long")
    except NoWorkersError:
        return True
    return False


def test_where_no_answer_was_late_of_late_more_are_foreseen_before_a_request_is_refused() -> None:
    router, _ = taught(sheds=True, itl_s=0.024)
    assert not refused_beside_five(router)
    (candidate,) = router.explain(TOKENS).candidates
    assert candidate.policy_terms["missed"] > 0.7


def test_once_answers_are_late_fewer_are() -> None:
    router, clock = taught(sheds=True, itl_s=0.024)
    for turn in range(30):
        router.decide(TOKENS, f"late {turn}")
        clock.advance(0.02)
        router.mark_prefill_complete(f"late {turn}")
        clock.advance(10 * 0.0252)
        router.free(f"late {turn}", output_tokens=11)
        clock.advance(0.1)
    assert refused_beside_five(router)


def test_prompts_that_come_are_too_many_before_an_answer_of_theirs_has_ended() -> None:
    """What answers were slowed down by is learnt at their ends: a flood's have none yet."""
    router, clock = taught(sheds=True, itl_s=0.01)
    for turn in range(20):
        router.decide(TOKENS, f"beside {turn}", pinned_worker=0)
        clock.advance(0.02)
        router.mark_prefill_complete(f"beside {turn}")
    gone = 0
    with pytest.raises(NoWorkersError, match="theirs of ITL"):
        for gone in range(40):
            router.decide(list(range(gone * 2000, (gone + 1) * 2000)), f"flood {gone}")
            clock.advance(0.06)
    assert gone > 5
    (candidate,) = router.explain(TOKENS).candidates
    assert candidate.policy_terms["missed"] < 0.1  # by what answers were slowed down by so far


@pytest.mark.parametrize(("tenant", "is_refused"), [("loud", True), ("quiet", False)])
def test_who_has_more_than_its_share_is_refused_for_fewer_answers(
    tenant: str, is_refused: bool
) -> None:
    router, clock = taught(sheds=True, itl_s=0.024)
    for turn in range(5):
        loud = router.prompt(list(range(turn * 160, (turn + 1) * 160)))
        router.place(Placement(loud, f"loud {turn}", clock.now(), tenant="loud"))
    router.place(Placement(router.prompt(TOKENS[:32]), "quiet", clock.now(), tenant="quiet"))
    long = Placement(router.prompt(list(range(12_000))), "one", clock.now(), tenant=tenant)
    if is_refused:
        with pytest.raises(NoWorkersError, match="theirs of ITL"):
            router.place(long)
    else:
        router.place(long)


def test_where_first_tokens_are_late_a_request_is_refused_for_fewer_answers() -> None:
    """Though no answer was late: memory is what first tokens wait for."""
    router, clock = taught(sheds=True, itl_s=0.024)
    router.decide(TOKENS, "beside")
    for turn in range(30):
        placement = Placement(router.prompt(TOKENS), f"late {turn}", clock.now() - 9.0)
        with pytest.raises(NoWorkersError, match="TTFT objective"):
            router.place(placement)
    router.free("beside")
    assert refused_beside_five(router)


def be_late(router: KvRouter, clock: ManualClock, times: int, tenant: str = "") -> None:
    """Send a tenant's requests that are foreseen too late, beside another one."""
    router.decide(TOKENS, "beside")
    for turn in range(times):
        placement = Placement(
            router.prompt(TOKENS), f"late {turn}", clock.now() - 9.0, tenant=tenant
        )
        with pytest.raises(NoWorkersError, match="TTFT objective"):
            router.place(placement)


def test_what_no_engine_computes_in_time_is_refused_only_where_others_are_late() -> None:
    router, clock = taught(sheds=None, itl_s=0.04, slo_itl_ms=None, slo_ttft_ms=200.0)
    cold_s = [router.limits.cold_s(tokens) or math.nan for tokens in (len(TOKENS), 60_000)]
    assert cold_s[0] < 0.2 < cold_s[1]
    be_late(router, clock, 0)
    router.decide(list(range(60_000)), "in a fleet that has time for it")
    router.free("in a fleet that has time for it")
    router.free("beside")
    be_late(router, clock, 2)
    long = list(range(100_000, 160_000))  # cached nowhere
    with pytest.raises(NoWorkersError, match="TTFT objective"):
        router.decide(long, "in one that has none")
    router.free("beside")
    router.decide(long, "on an idle worker")


@pytest.mark.parametrize(("tenant", "is_refused"), [("loud", True), ("quiet", False)])
def test_requests_of_one_tenant_that_come_again_when_refused_have_no_others_refused(
    tenant: str, is_refused: bool
) -> None:
    router, clock = taught(sheds=True, itl_s=0.024)
    be_late(router, clock, 30, "loud")
    router.free("beside")
    for turn in range(5):
        router.decide(TOKENS, f"beside {turn}", pinned_worker=0)
    long = Placement(router.prompt(list(range(8_000))), "one", clock.now(), tenant=tenant)
    if is_refused:
        with pytest.raises(NoWorkersError, match="theirs of ITL"):
            router.place(long)
    else:
        router.place(long)


NAMED = read_objectives([("x-dynamo-slo-ttft-ms", "200")])
"""Ten times what the prompt takes on an idle engine here."""


@pytest.mark.parametrize(
    ("sheds", "asked", "slo_ttft_ms", "waited_s", "refused"),
    [
        (None, NAMED, None, 0.0, 0),  # in time
        (None, NAMED, None, 0.19, 1),  # beside another prompt it would come too late
        (None, Objectives(), 200.0, 0.19, 1),  # the settings name it
        (None, Objectives(), None, 9.0, 0),  # nobody does
        (False, NAMED, 200.0, 9.0, 0),
        (True, Objectives(), None, 9.0, 1),  # the default counts where it is asked for
        (None, read_objectives([("x-dynamo-slo-ttft-ms", "1")]), None, 9.0, 0),  # none can meet it
    ],
)
def test_a_late_first_token_is_refused_for_an_objective_that_somebody_named(
    sheds: bool | None,
    asked: Objectives,
    slo_ttft_ms: float | None,
    waited_s: float,
    refused: int,
) -> None:
    router, clock = taught(sheds=sheds, itl_s=0.01, slo_itl_ms=None, slo_ttft_ms=slo_ttft_ms)
    resolved = router.limits.objectives(len(TOKENS), asked)  # as the dispatcher hands it on
    assert refusals(router, clock, resolved, waited_s) == refused


def test_slow_answers_alone_refuse_nobody_where_no_setting_names_an_itl() -> None:
    router, clock = taught(sheds=None, itl_s=0.04, slo_itl_ms=None)
    assert refusals(router, clock, NAMED) == 0


def test_a_further_attempt_is_not_late_for_what_the_first_one_took() -> None:
    router, clock = taught(sheds=None, itl_s=0.01, slo_itl_ms=None)
    router.decide(TOKENS, "beside")
    asked = Placement(router.prompt(TOKENS), "again", clock.now() - 9.0, objectives=NAMED)
    with pytest.raises(NoWorkersError, match="TTFT objective"):
        router.place(asked)
    assert router.place(replace(asked, retried=True)).request_id == "again"


def test_a_request_that_waits_has_its_turn_to_be_refused_once_it_is_too_late() -> None:
    router, clock = taught(sheds=None, itl_s=0.01, slo_itl_ms=None)
    queue, free = new_queue(router), [9.0]
    queue._seconds_until_free = lambda asked_for: free[0]
    queue._wait_times = lambda: queue._seconds_until_free
    plain = Placement(router.prompt(TOKENS), "plain", clock.now())
    named = replace(plain, request_id="named", objectives=NAMED)
    pinned = replace(named, request_id="pinned", pinned=router.registry.entries()[0].ranks[0])
    for placement in (plain, named):
        queue.enter(lambda placement=placement: ticket_of(router, placement))
    queue.enter(lambda: ticket_of(router, pinned, pinned.pinned))
    assert queue.next() is None and queue.ask_again_s < 0.25
    clock.advance(0.25)
    doomed = queue.next()
    assert doomed is not None and doomed.request_id == "named"
    router.decide(TOKENS, "beside")
    with pytest.raises(NoWorkersError):
        router.place(named)
    assert queue.next() is None and len(queue) == 2 and queue.ask_again_s == 9.0
    free[0] = 0.0
    assert {queue.next().request_id, queue.next().request_id} == {"plain", "pinned"}  # type: ignore[union-attr]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans()), min_size=1, max_size=20),
    st.floats(0.0, 3.0),
)
def test_no_request_is_let_go_as_doomed_before_its_time_or_without_one(
    arrivals: list[tuple[float, bool]], later_s: float
) -> None:
    router, clock = taught(sheds=None, itl_s=0.01, answers=40, slo_itl_ms=None)
    queue = new_queue(router)
    queue._seconds_until_free = lambda asked_for: float("inf")
    queue._wait_times = lambda: queue._seconds_until_free
    begin, expected = clock.now(), []
    for number, (at, is_named) in enumerate(arrivals):
        asked = NAMED if is_named else Objectives()
        placement = Placement(router.prompt(TOKENS), str(number), begin + at, objectives=asked)
        ticket = queue.enter(lambda placement=placement: ticket_of(router, placement))
        assert (ticket.refused_from < float("inf")) == is_named
        if ticket.refused_from < begin + later_s:
            expected.append(ticket.request_id)
    clock.advance(later_s)
    gone = []
    while (ticket := queue.next()) is not None:
        gone.append(ticket.request_id)
    assert sorted(gone) == sorted(expected) and len(queue) == len(arrivals) - len(gone)


def test_who_is_refused_for_a_late_first_token_comes_again_once_it_would_be_in_time() -> None:
    router, clock = taught(sheds=None, itl_s=0.01, slo_itl_ms=None)
    asked = Objectives(ttft_ms=200.0)
    long = router.prompt(list(range(2000 * BLOCK)))
    router.decide(long, "long")
    placement = Placement(router.prompt(TOKENS), "r", clock.now(), objectives=asked)
    with pytest.raises(NoWorkersError) as raised:
        router.place(placement)
    rows = [dict(each.policy_terms or {}) for each in router.explain(TOKENS).candidates]
    soonest = min(row["wait_s"] + row["prefill_s"] + row["memory_s"] for row in rows)
    assert soonest > 0.5
    assert raised.value.retry_after_s == pytest.approx(soonest - 0.2)
    clock.advance(raised.value.retry_after_s + 0.05)  # two empty steps: it joins one of its own
    router.place(Placement(router.prompt(TOKENS), "again", clock.now(), objectives=asked))


def test_busy_workers_say_when_one_has_computed_its_prompts() -> None:
    clock = ManualClock(1.0)
    admission = AdmissionConfig(active_prefill_tokens_threshold=100)
    config = KvRouterConfig(block_size=BLOCK, seed=1, use_kv_events=False, admission=admission)
    router = KvRouter(config, clock=clock)
    for worker in range(2):
        router.add_worker(worker)
        router.decide(list(range((worker + 1) * 10**5)), str(worker))
    with pytest.raises(NoWorkersError, match="every worker is busy") as raised:
        router.decide(TOKENS, "one more")
    foreseen = router.foreseen_ttft_s("0")
    assert foreseen is not None and foreseen[0] > 1.0
    answer_s = 256.0 * 0.02  # what is believed of one before any has ended
    assert raised.value.retry_after_s == pytest.approx(max(foreseen[0], answer_s))
    with pytest.raises(NoWorkersError, match="the pinned worker is busy") as pinned:
        router.decide(TOKENS, "one more", pinned_worker=1)
    foreseen = router.foreseen_ttft_s("1")
    assert foreseen is not None
    assert pinned.value.retry_after_s == pytest.approx(max(foreseen[0], answer_s))


def late_share(router: KvRouter) -> float:
    policy = router._policy
    assert isinstance(policy, ForecastPolicy)
    return policy.parts[0].late_share


def test_answers_are_late_whose_tokens_are_counted() -> None:
    """How fast the tokens came of one that expired, or whose tokens nobody counted, is not
    known."""
    late, in_time = (taught(sheds=True, itl_s=itl_s)[0] for itl_s in (0.04, 0.01))
    assert late_share(late) > 0.6 and late_share(in_time) == 0.0
    router, clock = taught(sheds=True, itl_s=0.01)
    for turn in range(60):
        router.decide(TOKENS, f"not counted {turn}")
        clock.advance(0.02)
        router.mark_prefill_complete(f"not counted {turn}")
        clock.advance(10.0)
        router.free(f"not counted {turn}")
    assert late_share(router) == 0.0
