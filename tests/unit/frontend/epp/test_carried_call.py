"""CarriedCall: what it takes to be over of a request that Envoy carries."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.frontend.epp.carried_call import CarriedCall
from dynamo_router.router.disagg import DisaggConfig, PairRule
from dynamo_router.router.pairs import PairDecision
from dynamo_router.router.policy import Decision
from dynamo_router.server.handoff import HandoffOutcomes
from dynamo_router.server.request_limits import HandoffLimits


async def test_an_answer_that_comes_whole_hands_over_at_its_first_tokens_forecast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not after the sum that was compared, which has other requests' seconds in it."""
    later: list[float] = []
    loop = SimpleNamespace(call_later=lambda seconds, call: later.append(seconds))
    endpoints: Any = SimpleNamespace(
        is_worker=lambda worker_id: True,
        of_worker=lambda worker_id: "10.0.0.2:1",
        headers_for=lambda *worker: {},
    )
    leg = SimpleNamespace(client=object(), begin=lambda: None, end=lambda: None)
    decision = Decision(WorkerWithDpRank(2, 0), 0, 0, 2, 0)
    pair = PairDecision(decision, decision, "faster", 0.9, 0.7, 0.25)
    request: Any = SimpleNamespace(facts=SimpleNamespace(streaming=False))
    attempt: Any = SimpleNamespace(decision=decision, leg=leg, pair=pair)

    async def route(endpoint: str, headers: dict[str, str]) -> None: ...

    outcomes = HandoffOutcomes(PairRule(DisaggConfig()), HandoffLimits(), SystemClock(), 16)
    call = CarriedCall(endpoints, 0, route, lambda worker_id: True, outcomes)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    call.send(request, attempt)
    monkeypatch.undo()
    assert later == [0.25]
