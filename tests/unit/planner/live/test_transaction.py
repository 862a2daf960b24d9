"""One change of a fleet: what is wanted at each moment, whatever happens to the engines."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.planner import Decision, Fleet
from dynamo_router.planner.live.transaction import (
    EngineState,
    Limits,
    SeenEngine,
    Step,
    Transaction,
    choose_victims,
)

LIMITS = Limits(8, start_limit_s=60.0, drain_limit_s=300.0, admit_s=10.0, parcel_s=30.0)
STARTING, READY, DRAINING = EngineState


def engine(engine_id: int, role: str = "aggregated", **more: Any) -> SeenEngine:
    fields: dict[str, Any] = {"served": 1, "in_flight": 0, "ready_s": 100.0, **more}
    return SeenEngine(engine_id, role, **fields)  # type: ignore[arg-type]


def change(
    before: Fleet, after: Fleet, *victims: int, limits: Limits = LIMITS, names: bool = True,
    **more: Any,
) -> Transaction:  # fmt: skip
    decision = Decision(id=1, at=0.0, before=before, after=after, victims=victims, **more)
    return Transaction(decision, limits, 0.0, names_victims=names)


def test_engines_come_and_it_is_done_once_they_serve() -> None:
    growing = change(Fleet(1), Fleet(3))
    seen = (engine(1),)
    step = growing.step(0.0, seen)
    assert (step.wanted, step.drains, step.end) == ({"aggregated": 3}, (), "")
    seen = (*seen, engine(2), engine(3, state=READY, served=0, ready_s=2.0))
    assert growing.step(1.0, seen).text == "waits for 1 aggregated"
    served = (*seen[:2], engine(3, state=READY, served=1, ready_s=3.0))
    assert growing.step(2.0, served).end == "done"
    admitted = (*seen[:2], engine(3, state=READY, served=0, ready_s=10.0))
    assert growing.step(10.0, admitted).end == "done"


def test_an_engine_goes_after_its_last_request_at_every_router() -> None:
    shrinking = change(Fleet(2), Fleet(1), 2)
    step = shrinking.step(0.0, (engine(1), engine(2, in_flight=3)))
    assert (step.wanted, step.drains, step.leaving) == ({"aggregated": 2}, (2,), {})
    for in_flight in (1, None):  # None: some router gives no answer
        seen = (engine(1), engine(2, state=DRAINING, in_flight=in_flight))
        step = shrinking.step(1.0, seen)
        assert (step.wanted, step.leaving) == ({"aggregated": 2}, {})
    step = shrinking.step(2.0, (engine(1), engine(2, state=DRAINING)))
    assert (step.wanted, step.leaving) == ({"aggregated": 1}, {"aggregated": (2,)})
    assert shrinking.step(3.0, (engine(1),)).end == "done"


def test_the_last_old_engine_goes_only_after_the_newcomer_has_served() -> None:
    swap = change(Fleet(0, 0, 2), Fleet(0, 1, 1), 2)
    old = (engine(1, "decode"), engine(2, "decode"))
    step = swap.step(0.0, old)
    assert (step.wanted, step.drains) == ({"prefill": 1, "decode": 2}, ())
    fresh = engine(3, "prefill", served=0, ready_s=1.0)
    assert swap.step(5.0, (*old, fresh)).drains == ()
    step = swap.step(6.0, (*old, engine(3, "prefill")))
    assert (step.drains, step.wanted) == ((2,), {"prefill": 1, "decode": 2})


def test_at_the_budget_engines_go_before_others_come() -> None:
    limits = Limits(2)
    swap = change(Fleet(0, 0, 2), Fleet(0, 1, 1), 2, limits=limits)
    old = (engine(1, "decode"), engine(2, "decode"))
    step = swap.step(0.0, old)
    assert (step.drains, step.wanted) == ((2,), {"prefill": 0, "decode": 2})
    step = swap.step(1.0, (old[0], engine(2, "decode", state=DRAINING)))
    assert step.wanted == {"prefill": 0, "decode": 1}
    step = swap.step(2.0, old[:1])
    assert (step.wanted, step.end) == ({"prefill": 1, "decode": 1}, "")
    assert swap.step(3.0, (old[0], engine(3, "prefill"))).end == "done"


def test_costs_count_toward_the_budget() -> None:
    """dynamo #13465: accelerators of a worker are configured."""
    swap = change(Fleet(0, 0, 2), Fleet(0, 1, 1), 2, limits=Limits(4, costs={"prefill": 4}))
    step = swap.step(0.0, (engine(1, "decode"), engine(2, "decode")))
    assert step.wanted == {"prefill": 0, "decode": 2}


def test_engines_that_never_get_ready_are_stopped_started_once_more_and_given_up() -> None:
    growing = change(Fleet(1), Fleet(2))
    stuck = (engine(1), engine(2, state=STARTING, served=0, ready_s=0.0))
    assert growing.step(0.0, stuck).wanted == {"aggregated": 2}
    assert growing.step(60.0, stuck).wanted == {"aggregated": 2}
    step = growing.step(60.1, stuck)
    assert step.wanted == {"aggregated": 1}
    assert step.text == "not ready within 60 s: 1 aggregated; stopped, to be started once more"
    assert growing.step(61.0, stuck).wanted == {"aggregated": 2}
    step = growing.step(122.0, stuck)
    assert (step.wanted, step.end) == ({"aggregated": 1}, "abandoned")
    assert step.text == "not ready within 60 s: 1 aggregated, twice"


def test_nothing_is_removed_where_newcomers_were_given_up() -> None:
    swap = change(Fleet(0, 0, 2), Fleet(0, 1, 1), 2)
    old = (engine(1, "decode"), engine(2, "decode"))
    steps = [swap.step(at, old) for at in (0.0, 61.0, 62.0, 123.0)]
    assert steps[-1].end == "abandoned"
    assert {step.wanted["decode"] for step in steps} == {2}
    assert not any(step.drains or step.leaving for step in steps)


def test_a_drain_that_takes_too_long_is_given_up_and_nothing_is_stopped() -> None:
    shrinking = change(Fleet(2), Fleet(1), 2)
    busy = (engine(1), engine(2, state=DRAINING, in_flight=1))
    assert shrinking.step(0.0, busy).end == ""
    step = shrinking.step(301.0, busy)
    assert (step.end, step.wanted, step.leaving) == ("abandoned", {"aggregated": 2}, {})
    assert step.text == "requests still run after 300 s on aggregated engine 2"


def test_a_prefill_engine_stays_while_parcels_may_be_read() -> None:
    shrinking = change(Fleet(0, 2, 1), Fleet(0, 1, 1), 2)
    seen = (engine(1, "prefill"), engine(2, "prefill", state=DRAINING), engine(3, "decode"))
    assert shrinking.step(0.0, seen).leaving == {}
    again = (seen[0], engine(2, "prefill", state=DRAINING, in_flight=1), seen[2])
    assert shrinking.step(29.0, again).leaving == {}
    assert shrinking.step(31.0, seen).leaving == {}  # counted anew
    assert shrinking.step(61.0, seen).leaving == {"prefill": (2,)}


def test_a_victim_that_is_gone_is_not_replaced() -> None:
    shrinking = change(Fleet(3), Fleet(1), 2, 3)
    step = shrinking.step(0.0, (engine(1), engine(3, in_flight=2)))
    assert (step.wanted, step.drains) == ({"aggregated": 2}, (3,))


def test_a_planner_that_starts_again_goes_on_from_what_it_sees() -> None:
    first = change(Fleet(2), Fleet(1), 2)
    first.step(0.0, (engine(1), engine(2)))
    after_restart = change(Fleet(2), Fleet(1), 2)
    step = after_restart.step(0.0, (engine(1), engine(2, state=DRAINING)))
    assert step.leaving == {"aggregated": (2,)}


def test_an_executor_that_chooses_itself_is_given_the_number() -> None:
    shrinking = change(Fleet(2), Fleet(1), 2, names=False)
    step = shrinking.step(0.0, (engine(1), engine(2, in_flight=3)))
    assert (step.wanted, step.drains) == ({"aggregated": 1}, ())
    assert step.text == "waits until the executor has stopped 1 aggregated"
    assert shrinking.step(301.0, (engine(1), engine(2))).end == "abandoned"
    assert shrinking.step(302.0, (engine(2),)).end == "done"


def test_a_decision_expires_by_the_time_since_it_was_read() -> None:
    growing = change(Fleet(1), Fleet(2), expires=20.0)
    assert growing.step(19.0, (engine(1),)).end == ""
    step = growing.step(21.0, (engine(1),))
    assert (step.end, step.wanted) == ("abandoned", {"aggregated": 1})


def test_victims_are_those_that_go_already_then_the_idlest() -> None:
    seen = (
        engine(1, active_blocks=5),
        engine(2, active_blocks=2),
        engine(3, active_blocks=9, state=DRAINING),
        engine(4, active_blocks=0, state=STARTING, age_s=50.0),
        engine(5, active_blocks=0, state=STARTING, age_s=5.0),
        engine(6, "prefill"),
    )
    assert choose_victims(seen, Fleet(5, 1), Fleet(1, 1)) == (3, 5, 4, 2)
    assert choose_victims(seen, Fleet(5, 1), Fleet(5, 2)) == ()


ROLE = st.sampled_from(["aggregated", "prefill", "decode"])
COUNTS = st.builds(Fleet, *[st.integers(0, 3)] * 3)
ENGINES = st.lists(
    st.builds(
        lambda role, state, in_flight, served: (role, state, in_flight, served),
        ROLE, st.sampled_from(EngineState), st.sampled_from([None, 0, 2]), st.integers(0, 1),
    ),
    max_size=9,
)  # fmt: skip


@given(COUNTS, COUNTS, st.integers(1, 9), st.lists(ENGINES, min_size=1, max_size=6))
def test_no_engine_with_requests_is_ever_stopped_and_the_budget_holds(
    before: Fleet, after: Fleet, budget: int, views: list[list[Any]]
) -> None:
    """Whatever is seen, in whatever order."""
    transaction: Transaction | None = None
    for number, view in enumerate(views):
        seen = tuple(
            engine(number, role, state=state, in_flight=in_flight, served=served)
            for number, (role, state, in_flight, served) in enumerate(view)
        )
        if transaction is None:
            victims = choose_victims(seen, before, after)
            transaction = change(before, after, *victims, limits=Limits(budget))
        step: Step = transaction.step(100.0 * number, seen)
        stopped = {each for ids in step.leaving.values() for each in ids}
        for each in seen:
            if each.engine_id in stopped:
                assert (each.state, each.in_flight) == (DRAINING, 0)
        most = max(budget, before.engines, after.engines)
        assert sum(step.wanted.values()) <= most
        assert set(step.drains) <= set(transaction.decision.victims)
