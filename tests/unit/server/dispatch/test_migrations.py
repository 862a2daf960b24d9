"""Which streams go on elsewhere whose client has no more than a prefill worker's token."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_engine import chunk, prompt

from dynamo_router.base.errors import StatusCode
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.pairs import PairDecision
from dynamo_router.router.placement import Placement
from dynamo_router.router.policy import Decision
from dynamo_router.server.dispatch.migrations import Migrations
from dynamo_router.server.dispatch.request import Attempt, Request
from dynamo_router.server.dispatch.request_reader import RequestReader
from dynamo_router.server.dispatch.retries import FailedAttempt, FailedAttempts
from dynamo_router.server.migration import CarriedStream, RefusedMove
from dynamo_router.workers.failures import Origin, judge

BODY = prompt("r1", 32).SerializeToString()


def migrations_of() -> Migrations:
    limits = SimpleNamespace(check=lambda *facts: (frozenset(), None))
    monitor: Any = SimpleNamespace(limits=limits)
    return Migrations(8, monitor, RequestReader(16))


def request_of() -> Request:
    facts = RequestReader(16).generate_at_once(BODY)
    assert facts is not None
    stream = CarriedStream(BODY, "r1")
    failures = FailedAttempts(3)
    return Request("r1", BODY, facts, 0.0, Placement(facts.prompt, "r1"), failures=failures,
                   stream=stream)  # fmt: skip


def failed_at(request: Request, worker_id: int, *, has_begun: bool) -> Attempt:
    """An attempt whose connection to its decode worker broke."""
    decision = Decision(WorkerWithDpRank(worker_id), 0, 0, 2, 0)
    leg: Any = SimpleNamespace(has_spoken=not has_begun)
    pair = PairDecision(decision, decision)
    attempt = Attempt(decision, worker_id, "r1", None, 0.0, 0.0, 0, 0.0, 0.0, pair, leg, messages=1)
    assert request.stream is not None
    request.stream.take(chunk(prompt("r1"), 11).SerializeToString())
    verdict = judge(Origin.TRANSPORT, StatusCode.UNAVAILABLE, started=True)
    request.failures.add(FailedAttempt(worker_id, Origin.TRANSPORT, verdict, "lost"))
    return attempt


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_request_that_breaks_what_it_is_handed_to_ends(has_begun: bool) -> None:
    """As without that token: two broken connections are enough. One in mid-stream is another
    matter."""
    migrations, request = migrations_of(), request_of()
    budget = lambda request: True  # noqa: E731
    attempt = failed_at(request, 1, has_begun=has_begun)
    assert await migrations.move(request, attempt, True, budget)
    assert 1 in request.placement.excluded
    attempt = failed_at(request, 2, has_begun=has_begun)
    assert await migrations.move(request, attempt, True, budget) is has_begun
    assert migrations.refused[RefusedMove.FAILURE] == (not has_begun)
