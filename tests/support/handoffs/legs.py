"""A HandoffCall between two calls of engines that say what a test tells them to."""

import asyncio
from types import SimpleNamespace
from typing import Any

from support.fake_engine import prompt

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import StatusCode
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.disagg import DisaggConfig, Landing, PairRule
from dynamo_router.router.pairs import PairDecision
from dynamo_router.router.policy import Decision
from dynamo_router.runtime.request_planes import AnswerQueue
from dynamo_router.server.handoff.call import HandoffCall
from dynamo_router.server.handoff.outcomes import HandoffOutcomes
from dynamo_router.server.request_limits import HandoffLimits
from dynamo_router.workers.failures import EngineCallError, Origin
from dynamo_router.workers.handoffs.connectors import CONNECTORS, Meeting
from dynamo_router.workers.handoffs.plan import HandoffPlan, plan_handoff
from dynamo_router.workers.transfer_facts import TransferFacts

DOWN = EngineCallError(Origin.CONNECT, StatusCode.UNAVAILABLE, "gone")


class Call(AnswerQueue[bytes]):
    """An EngineCall whose messages are put into it."""

    cancelled = False

    def cancel(self) -> bool:
        self.cancelled = not self.ended
        self.end(asyncio.CancelledError())
        return self.cancelled

    def __aiter__(self) -> Any:
        return self.items()

    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def say(self, message: Any) -> None:
        self.put(message.SerializeToString(), self)


class Client:
    """An EngineClient with one call."""

    address, dialect = "10.0.0.5:1", "openai"

    def __init__(self) -> None:
        self.call = Call()
        self.sent: list[bytes] = []
        self.aborted: list[str] = []

    def generate(self, request: bytes, *, timeout: Any, metadata: Any) -> Call:
        self.sent.append(request)
        return self.call

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        self.aborted.append(request_id)
        return True, "stopped"


class Legs:
    """A HandoffCall under way, read by a task."""

    def __init__(
        self,
        plan: HandoffPlan,
        limits: HandoffLimits = HandoffLimits(),  # noqa: B008
        is_first: bool = False,
    ) -> None:
        self.first, self.then = Client(), Client()
        self.ended: list[bool] = []
        leg: Any = SimpleNamespace(
            client=self.first,
            worker_id=1,
            address=Client.address,
            cached_tokens=0,
            computed_at=0.0,
            is_computing=True,
            is_first=is_first,
            has_spoken=False,
            held_s=0.0,
            begin=lambda: None,
            metadata=lambda metadata: metadata,
            end=lambda: self.ended.append(True),
        )

        def on_computed(cached: int) -> None:
            leg.is_computing, leg.cached_tokens = False, cached
            leg.computed_at = self.outcomes.now()

        def on_decoded() -> None:
            leg.has_spoken = False
            self.landed += 1

        leg.on_computed, leg.on_decoded = on_computed, on_decoded
        self.leg, self.landed = leg, 0
        self.outcomes = HandoffOutcomes(PairRule(DisaggConfig()), limits, SystemClock(), 16)
        decision = Decision(WorkerWithDpRank(2, 0), 0, 0, 2, 0)
        landing = Landing(1, decision.worker, 1000, 1000)
        pair = PairDecision(decision, decision, "always", landing=landing)
        decode: Any = self.then
        self.call = HandoffCall(self.outcomes, leg, decode, plan, ("r", "r~1"), pair, None, ())
        self.found: list[bytes] = []
        self.reads = asyncio.Event()
        """whether the client takes what comes"""
        self.reads.set()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.call:
            self.found.append(message)
            await self.reads.wait()

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


def plan(dialect: str, connector: str) -> HandoffPlan:
    facts = TransferFacts(connector=connector, host="10.0.0.5", port=1, engine_ids=("e",))
    request = prompt("r", 32).SerializeToString()
    return plan_handoff(request, 4, CONNECTORS[dialect, connector], facts, Meeting(7, "xfer-1"))
