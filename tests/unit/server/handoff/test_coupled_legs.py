"""Both legs at once: what the end of one does to the other, turn by turn of the event loop."""

import asyncio

import pytest
from msgspec.structs import replace
from support.fake_engine import chunk, complete, prompt
from support.handoffs.legs import DOWN, Legs, plan
from support.polling import until

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import StatusCode
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.disagg import DisaggConfig, PairRule
from dynamo_router.router.pairs import PairDecision
from dynamo_router.router.policy import Decision
from dynamo_router.server.handoff.leg import PrefillFailedError
from dynamo_router.server.handoff.outcomes import HandoffOutcomes
from dynamo_router.server.request_limits import HandoffLimits
from dynamo_router.workers.failures import EngineCallError, Origin
from dynamo_router.workers.transfer_facts import BOOTSTRAP, NIXL_PUSH

MEETING, WRITING = plan("openai", BOOTSTRAP), plan("openai", NIXL_PUSH)
REQUEST = prompt("r~1", 32)


async def test_both_are_asked_before_either_answers() -> None:
    legs = Legs(MEETING)
    assert len(legs.first.sent) == len(legs.then.sent) == 1, "in the turn in which it began"
    await legs.turns(2)
    legs.task.cancel()
    await asyncio.wait([legs.task])
    assert legs.first.call.cancelled and legs.ended


async def test_a_prefill_that_fails_ends_its_reader_in_one_turn() -> None:
    legs = Legs(MEETING)
    await legs.turns(2)
    legs.first.call.end(DOWN)
    await legs.turns(1)
    assert legs.then.call.cancelled
    with pytest.raises(PrefillFailedError, match="gone"):
        await legs.task
    assert legs.outcomes.failures["prefill"] == 1 and legs.outcomes.failures["decode"] == 0
    assert legs.ended


async def test_a_reader_that_fails_ends_the_prefill() -> None:
    legs = Legs(MEETING)
    await legs.turns(2)
    legs.then.call.end(DOWN)
    await legs.turns(2)  # in between, whether the prefill worker was the cause
    assert legs.first.call.cancelled
    with pytest.raises(EngineCallError, match="gone"):
        await legs.task
    assert legs.outcomes.failures["decode"] == 1


async def test_of_two_that_fail_in_one_turn_the_prefill_worker_is_the_cause() -> None:
    legs = Legs(MEETING)
    await legs.turns(2)
    legs.then.call.end(EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, "its partner is lost"))
    legs.first.call.end(DOWN)
    with pytest.raises(PrefillFailedError, match="gone"):
        await legs.task
    assert legs.outcomes.failures["prefill"] == 1 and legs.outcomes.failures["decode"] == 0


async def test_after_its_first_token_a_reader_needs_no_prefill_worker() -> None:
    legs = Legs(MEETING)
    await legs.turns(2)
    legs.then.call.say(chunk(REQUEST, 11))
    await until(lambda: len(legs.found) == 1)
    legs.first.call.end(DOWN)
    await legs.turns(2)
    assert not legs.then.call.cancelled
    legs.then.call.say(complete(REQUEST, 11))
    legs.then.call.end()
    await legs.task
    assert len(legs.found) == 2 and not +legs.outcomes.failures


async def test_the_end_waits_for_the_prefill_workers_last_words() -> None:
    legs = Legs(MEETING)
    await legs.turns(2)
    legs.then.call.say(complete(REQUEST, 11))
    legs.then.call.end()
    await legs.turns(4)
    assert not legs.found
    last = complete(REQUEST, 11)
    last.complete.cached_tokens = 9
    legs.first.call.say(last)
    legs.first.call.end()
    await legs.task
    found = type(last).FromString(legs.found[0])
    assert (found.request_id, found.complete.cached_tokens) == ("r", 9)


async def test_an_engine_that_writes_is_not_cut_off_until_it_takes_too_long() -> None:
    legs = Legs(WRITING, HandoffLimits(disagg_prefill_timeout_s=0.05))
    await legs.turns(2)
    legs.call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await legs.task
    assert legs.then.call.cancelled and not legs.first.call.cancelled and legs.ended
    await until(lambda: legs.first.call.cancelled)


async def test_an_abort_reaches_each_engine_that_may_be_stopped() -> None:
    for chosen, stopped in ((MEETING, ["r~1"]), (WRITING, [])):
        legs = Legs(chosen)
        done, text = await legs.call.abort(timeout=1.0)
        assert done and text.count("stopped") == len(stopped) + 1
        assert (legs.first.aborted, legs.then.aborted) == (stopped, ["r~1"])
        legs.call.cancel()
        legs.task.cancel()
        await asyncio.wait([legs.task])


async def test_a_prefill_that_ends_the_answer_ends_its_reader() -> None:
    legs = Legs(WRITING)
    await legs.turns(2)
    last = complete(REQUEST, 7)
    last.complete.finish_reason = "stop"
    legs.first.call.say(last)
    legs.first.call.end()
    await legs.task
    first, then = (type(last).FromString(each) for each in legs.found)
    assert list(first.chunk.token_ids) == list(then.complete.output_token_ids) == [7]
    assert legs.then.call.cancelled and not +legs.outcomes.failures


def test_the_regret_is_of_the_first_tokens_forecast() -> None:
    """Not of the sums that were compared, which have other requests' seconds in them."""
    outcomes = HandoffOutcomes(PairRule(DisaggConfig()), HandoffLimits(), SystemClock(), 16)
    found: list[float] = []
    outcomes.on_regret_s.append(lambda request_id, seconds: found.append(seconds))
    decision = Decision(WorkerWithDpRank(2, 0), 0, 0, 2, 0)
    pair = PairDecision(decision, decision, "faster", 0.9, 0.7, 0.25)
    outcomes.on_first_token("r", pair, 0.3)
    outcomes.on_first_token("r", replace(pair, first_token_s=None), 0.3)
    assert found == [pytest.approx(0.05)]
