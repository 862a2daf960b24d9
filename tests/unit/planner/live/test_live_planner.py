"""The live planner turn by turn: one leads, a change is done once and whole, and whatever fails in
between stops no stream and is gone on from."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from support.planner.environment import Environment, FixedBrain, FlakyStore, new_planner

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import RouterError
from dynamo_router.planner import Fleet
from dynamo_router.planner.live.live_planner import LivePlanner
from dynamo_router.planner.live.plan_records import DecisionRecord, PlannerStatus
from dynamo_router.planner.live.transaction import Limits
from dynamo_router.runtime.kv_stores import MemoryStore
from dynamo_router.workers.records import DECISIONS, STATUS, read_plan

TURNS = 60


@pytest.fixture
def environment() -> Environment:
    made = Environment()
    made.have("aggregated", 2)
    return made


@pytest.fixture
def store_clock() -> ManualClock:
    """By which leases end."""
    return ManualClock()


@pytest.fixture
def store(store_clock: ManualClock) -> FlakyStore:
    return FlakyStore(MemoryStore(store_clock))


Make = Callable[..., Any]


@pytest.fixture
async def make(
    environment: Environment, store: FlakyStore, store_clock: ManualClock
) -> AsyncIterator[Make]:
    planners: list[LivePlanner] = []

    async def made(brain: FixedBrain, **more: Any) -> LivePlanner:
        planner = new_planner(environment, store, brain, store_clock=store_clock, **more)
        planners.append(planner)
        await planner._leader.start()
        return planner

    yield made
    store.away = False
    for planner in planners:
        await planner.close()
        await planner._leader.close()


async def turns(planner: LivePlanner, environment: Environment, count: int = TURNS) -> None:
    """So many turns, a second each; with a plan that is under way, once it is made."""
    for _ in range(count):
        await planner.turn()
        if planner._planning is not None:
            await asyncio.wait([planner._planning])
        environment.clock.advance(1.0)


async def records(store: FlakyStore) -> list[DecisionRecord]:
    texts, _ = await read_plan(store.store, "test")
    return [msgspec.json.decode(text, type=DecisionRecord) for text in texts]


async def crash(planner: LivePlanner, store: FlakyStore) -> None:
    """It is gone at once; its lease ends by itself."""
    await planner._leader.abandon()
    await store.store.revoke(planner._leader._lease.lease)


async def test_a_plan_becomes_engines_and_a_record(
    environment: Environment, store: FlakyStore, make: Make
) -> None:
    planner = await make(FixedBrain(Fleet(4)))
    await turns(planner, environment, 20)
    assert len(environment.engines) == 4
    (record,) = await records(store)
    assert (record.decision.before, record.decision.after) == (Fleet(2), Fleet(4))
    assert (record.decision.state, record.decision.reasons) == ("done", ("it was asked for",))
    assert record.outcome == "every engine is in place"
    assert planner.outcomes == {"done": 1}
    status = msgspec.json.decode(
        (await read_plan(store.store, "test"))[1] or b"", type=PlannerStatus
    )
    assert status.points[-1].serving == Fleet(4) == status.points[-1].wanted


async def test_scale_down_waits_for_streams_and_cuts_none(
    environment: Environment, make: Make
) -> None:
    """dynamo #13559, #13565."""
    for engine in environment.engines.values():
        engine.requests = 2
    planner = await make(FixedBrain(Fleet(1)))
    await turns(planner, environment, 30)
    assert len(environment.engines) == 2
    (draining,) = [each for each in environment.engines.values() if each.draining]
    draining.requests = 0
    await turns(planner, environment, 5)
    assert len(environment.engines) == 1
    assert environment.cut == 0
    assert planner.outcomes == {"done": 1}


async def test_one_of_two_planners_acts_and_the_other_follows_when_it_is_gone(
    environment: Environment, store: FlakyStore, make: Make
) -> None:
    first = await make(FixedBrain(Fleet(3)))
    second = await make(FixedBrain(Fleet(6)), name="two")
    for _ in range(10):
        await turns(first, environment, 1)
        await turns(second, environment, 1)
    assert len(environment.engines) == 3
    assert (first.leads, second.leads, second.text) == (True, False, "another planner leads")
    await crash(first, store)
    await turns(second, environment, 30)
    assert second.leads
    assert len(environment.engines) == 6


async def test_a_planner_that_lost_its_lease_begins_nothing(
    environment: Environment, store_clock: ManualClock, make: Make
) -> None:
    planner = await make(FixedBrain(Fleet(4)))
    environment.stuck = True
    await turns(planner, environment, 3)
    asked = len(environment.applied)
    store_clock.advance(11.0)  # the store may have let another one in
    transaction = planner._transaction
    assert transaction is not None and planner.seen is not None
    await planner._go_on(transaction, planner.seen)
    assert len(environment.applied) == asked
    assert planner.text == "another planner may lead: nothing is begun"


async def test_a_planner_killed_in_mid_change_is_gone_on_from(
    environment: Environment, store: FlakyStore, make: Make
) -> None:
    for engine in environment.engines.values():
        engine.requests = 1
    first = await make(FixedBrain(Fleet(1)))
    await turns(first, environment, 5)
    (draining,) = [each for each in environment.engines.values() if each.draining]
    await crash(first, store)
    second = await make(FixedBrain(Fleet(8)), name="two")  # what it would want
    await turns(second, environment, 1)
    assert second.open_decision is not None
    assert second.open_decision.after == Fleet(1)
    draining.requests = 0
    await turns(second, environment, 3)
    assert len(environment.engines) == 1
    (record,) = await records(store)
    assert (record.decision.state, record.planner) == ("done", "two")
    assert environment.cut == 0


async def test_a_store_that_is_away_in_mid_change_holds_it_and_nothing_more(
    environment: Environment, store: FlakyStore, make: Make
) -> None:
    for engine in environment.engines.values():
        engine.requests = 1
    planner = await make(FixedBrain(Fleet(1)))
    await turns(planner, environment, 5)
    store.away = True
    for engine in environment.engines.values():
        engine.requests = 0
    await turns(planner, environment, 5)
    assert planner.text == "the store is away: no answer"
    assert planner.errors["store"] >= 5
    assert len(environment.engines) == 2
    store.away = False
    await turns(planner, environment, 5)
    assert len(environment.engines) == 1
    assert [record.decision.state for record in await records(store)] == ["done"]


async def test_a_decision_is_written_before_anything_of_it_is_done(
    environment: Environment, store: FlakyStore, make: Make
) -> None:
    planner = await make(FixedBrain(Fleet(4)))
    await turns(planner, environment, 1)
    store.away = True
    await turns(planner, environment, 5)
    assert environment.applied == []
    store.away = False
    assert await records(store) == []


async def test_workers_that_never_get_ready_are_given_up_and_said(
    environment: Environment, store: FlakyStore, make: Make
) -> None:
    planner = await make(FixedBrain(Fleet(3)))
    environment.stuck = True
    await turns(planner, environment, 130)
    first = (await records(store))[0]
    assert first.decision.state == "abandoned"
    assert first.outcome == "not ready within 60 s: 1 aggregated, twice"
    assert [id for id, each in environment.engines.items() if each.ready] == [101, 102]


async def test_a_wall_clock_that_jumps_changes_nothing(
    environment: Environment, store: FlakyStore, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter([1e9, 0.0, 4e9, 5.0])
    monkeypatch.setattr(time, "time", lambda: next(jumps, 2e9))
    environment.stuck = True
    planner = await make(FixedBrain(Fleet(3)))
    await turns(planner, environment, 5)
    environment.stuck = False
    for engine in environment.engines.values():
        engine.ready = True
    await turns(planner, environment, 20)
    (record,) = await records(store)
    assert record.decision.state == "done"
    assert len(environment.engines) == 3


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"silent": True}, "no plan: no router answers"),
        ({"queued": None}, "no plan: a router's queue has no number"),
        ({"away": True}, "test: no answer"),
    ],
)
async def test_no_data_is_no_zero(
    environment: Environment, make: Make, fault: dict[str, Any], text: str
) -> None:
    """Whoever would scale down on zero does not do it on nothing."""
    for name, value in fault.items():
        setattr(environment, name, value)
    planner = await make(FixedBrain(Fleet(1)))
    await turns(planner, environment, 60)
    assert planner.text == text
    assert len(environment.engines) == 2


async def test_silence_is_observed_as_such(environment: Environment, make: Make) -> None:
    environment.traffic = 0
    brain = FixedBrain(Fleet(2))
    planner = await make(brain)
    await turns(planner, environment, 30)
    assert planner.seen is not None and planner.seen.idle_s == 29.0
    last = brain.seen[-1]
    assert (last.requests, last.window_s) == ([], 25.0)
    environment.silent = True
    await turns(planner, environment, 1)
    assert planner.seen.idle_s == 0.0


async def test_the_least_is_there_without_any_data(environment: Environment, make: Make) -> None:
    environment.engines.clear()
    environment.silent = True
    planner = await make(FixedBrain(Fleet(9)), least=Fleet(2))
    await turns(planner, environment, 3)
    assert len(environment.engines) == 2
    environment.silent = False
    await turns(planner, environment, 15)
    assert planner.outcomes == {"done": 1}


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Fleet(9), "not done: 9 aggregated take 9 accelerators, more than 8"),
        (Fleet(0), "not done: no engines are fewer than 1 aggregated"),
    ],
)
async def test_the_bounds_hold_whatever_is_wanted(
    environment: Environment, make: Make, wanted: Fleet, text: str
) -> None:
    planner = await make(FixedBrain(wanted))
    await turns(planner, environment, 2)
    assert planner.text == text
    assert environment.applied == []


async def test_a_plan_that_cannot_be_made_changes_nothing(
    environment: Environment, make: Make
) -> None:
    planner = await make(FixedBrain(Fleet(4), fails=RouterError("the plan took longer than 5 s")))
    await turns(planner, environment, 2)
    assert planner.text == "no plan: the plan took longer than 5 s"
    assert planner.errors["plan"] == 1
    assert environment.applied == []


async def test_a_plan_for_other_engines_is_dropped(environment: Environment, make: Make) -> None:
    planner = await make(FixedBrain(Fleet(4)))
    await turns(planner, environment, 1)
    environment.have("aggregated", 1)  # by hand
    await turns(planner, environment, 1)
    assert planner.text == "engines changed while it planned: the plan is dropped"
    assert environment.applied == []


async def test_a_fleet_that_stays_is_asked_about_again(
    environment: Environment, make: Make
) -> None:
    brain = FixedBrain(Fleet(2))
    planner = await make(brain)
    await turns(planner, environment, 21)
    assert len(brain.seen) == 5
    assert planner.text == "stays at 2 aggregated: it was asked for"


async def test_engines_whose_drain_was_given_up_are_removed_by_a_later_plan(
    environment: Environment, store: FlakyStore, make: Make
) -> None:
    limits = Limits(8, start_limit_s=60.0, drain_limit_s=30.0)
    for engine in environment.engines.values():
        engine.requests = 1
    planner = await make(FixedBrain(Fleet(1)), limits=limits)
    await turns(planner, environment, 40)
    assert (await records(store))[0].decision.state == "abandoned"
    (draining,) = [each for each in environment.engines.values() if each.draining]
    draining.requests = 0
    await turns(planner, environment, 80)
    assert len(environment.engines) == 1
    assert environment.cut == 0


async def test_a_dry_run_prints_reasons_and_changes_nothing(
    environment: Environment, store: FlakyStore, make: Make
) -> None:
    shown: list[str] = []
    planner = await make(FixedBrain(Fleet(4)), dry_run=True, show=shown.append)
    await turns(planner, environment, 10)
    assert "2 aggregated -> 4 aggregated\n  because: it was asked for" in shown
    assert environment.applied == []
    for bucket in (DECISIONS, STATUS, "v1/planner_lock/test"):
        assert not (await store.store.bucket(bucket).entries()).entries


async def test_a_record_that_cannot_be_read_is_passed_over(
    environment: Environment, store: FlakyStore, make: Make
) -> None:
    await store.store.bucket(DECISIONS).put("test/000000000001", b'{"decision": 3}')
    await store.store.bucket(STATUS).put("test", b"\xff")
    planner = await make(FixedBrain(Fleet(3)))
    await turns(planner, environment, 10)
    assert len(environment.engines) == 3
