"""The prefill worker's token before the hand-off: what the decode worker may say after it."""

from typing import Any

import pytest
from support.fake_engine import chunk, complete, prompt
from support.handoffs.legs import Legs
from support.polling import until

from dynamo_router.base.errors import StatusCode
from dynamo_router.server.request_limits import HandoffLimits
from dynamo_router.workers.dialects import with_handoff
from dynamo_router.workers.failures import EngineCallError, Origin
from dynamo_router.workers.handoffs.plan import plan_handoff
from dynamo_router.workers.trtllm_proto import pb

PLAN = plan_handoff(prompt("r", 32).SerializeToString(), 4)
REQUEST = prompt("r~1", 32)
SOON = HandoffLimits(disagg_handoff_timeout_s=0.05)


async def spoken(limits: HandoffLimits = HandoffLimits(), *, reads: bool = True) -> Legs:  # noqa: B008
    """Legs whose client has the first token, 11."""
    legs = Legs(PLAN, limits, is_first=True)
    if not reads:
        legs.reads.clear()
    message = with_handoff(complete(REQUEST, 11).SerializeToString(), b"parcel")
    legs.first.call.put(message, legs.first.call)
    legs.first.call.end()
    await until(lambda: len(legs.found) == 1)
    assert list(pb.GenerateResponse.FromString(legs.found[0]).chunk.token_ids) == [11]
    return legs


async def rest_of(legs: Legs, *messages: Any) -> list[Any]:
    """What the client gets of these."""
    for message in messages:
        legs.then.call.say(message)
    legs.then.call.end()
    await legs.task
    return [pb.GenerateResponse.FromString(each) for each in legs.found[1:]]


async def test_a_decode_worker_that_says_nothing_has_failed() -> None:
    """One token is not an answer that was served."""
    legs = await spoken()
    with pytest.raises(EngineCallError, match="without a token") as raised:
        await rest_of(legs)
    assert raised.value.origin is Origin.EMPTY
    assert legs.outcomes.failures["decode_empty"] == 1 and legs.leg.has_spoken


async def test_a_chunk_without_a_token_says_nothing_of_the_first() -> None:
    legs = await spoken()
    empty, first, then = chunk(REQUEST), chunk(REQUEST, 11), chunk(REQUEST, 12)
    chunks = await rest_of(legs, empty, first, then, complete(REQUEST, 11, 12))
    assert [list(each.chunk.token_ids) for each in chunks] == [[12], []]
    assert legs.landed == 1 and legs.outcomes._rule.links.observed == 1


async def test_the_hand_off_ends_with_the_token_that_is_repeated() -> None:
    """Not with the one after it."""
    legs = await spoken()
    assert legs.leg.has_spoken and not legs.landed
    legs.then.call.say(chunk(REQUEST, 11))
    await until(lambda: legs.landed == 1)
    assert len(legs.found) == 1 and not legs.leg.has_spoken
    assert [list(each.chunk.token_ids) for each in await rest_of(legs, chunk(REQUEST, 12))] == [
        [12]
    ]


async def test_two_tokens_in_its_first_message() -> None:
    legs = await spoken()
    chunks = await rest_of(legs, chunk(REQUEST, 11, 12), complete(REQUEST, 11, 12))
    assert [list(each.chunk.token_ids) for each in chunks] == [[12], []]


@pytest.mark.parametrize("reason", ["cancelled", "stop"])
async def test_an_end_without_further_tokens_is_passed_on(reason: str) -> None:
    """Of an engine that was told to abort, or that finds that the token ends the answer."""
    legs = await spoken()
    last = complete(REQUEST)
    last.complete.finish_reason = reason
    (found,) = await rest_of(legs, last)
    assert (found.request_id, found.complete.finish_reason) == ("r", reason)
    assert list(found.complete.output_token_ids) == [11] and found.complete.completion_tokens == 1
    assert not +legs.outcomes.failures


async def test_a_client_that_is_slow_to_take_the_token_is_no_failure() -> None:
    """Nor does the time that it took say anything of the hand-off."""
    legs = await spoken(reads=False)
    assert legs.call._timer is None
    now = legs.outcomes.now() + 60.0
    legs.outcomes.now = lambda: now
    legs.reads.set()
    assert len(await rest_of(legs, chunk(REQUEST, 11, 12), complete(REQUEST, 11, 12))) == 2
    assert not +legs.outcomes.failures and legs.leg.held_s > 50.0
    assert not legs.outcomes._rule.links.observed


async def test_a_decode_worker_that_is_late_after_it_has_failed() -> None:
    legs = await spoken(SOON)
    with pytest.raises(EngineCallError, match="no token in time") as raised:
        await legs.task
    assert raised.value.code() is StatusCode.UNAVAILABLE
    assert legs.outcomes.failures["handoff_timeout"] == 1
