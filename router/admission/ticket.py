"""Ticket: a request that wants to go, with all that its turn depends on. Pure."""

import math
from dataclasses import dataclass
from typing import Literal

from ...base.identity import WorkerWithDpRank

QueuePolicy = Literal["fcfs", "lcfs", "wspt", "deadline"]
QUEUE_POLICIES: tuple[str, ...] = ("fcfs", "lcfs", "wspt", "deadline")

Lane = WorkerWithDpRank | None
"""The only worker a request may go to; None: any."""


@dataclass(frozen=True, slots=True)
class Urgency:
    """What a request asks for itself.

    A higher `priority` always goes first. Within one, `jump` is by how many seconds earlier the
    request counts as having come or, in wspt, how many times more it weighs; negative counts as 0.
    """

    priority: int = 0
    jump: float = 0.0


NORMAL = Urgency()


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that wants to go."""

    request_id: str
    arrived: float  # seconds of one clock
    uncached_tokens: int = 1  # prompt tokens that even the best worker would have to compute
    urgency: Urgency = NORMAL
    lane: Lane = None
    order_penalty_s: float = 0.0  # seconds that it counts as having come later, in fcfs
    latest_start: float = math.inf  # when it has to go to meet its TTFT objective
    tenant: str = ""
    refused_from: float = math.inf  # when it is too late for it not to be refused at its turn

    def score(self, policy: QueuePolicy) -> float:
        """Higher goes first: jump - arrival, jump + arrival, (1 + jump) / tokens (Dynamo's), or
        jump - latest start."""
        jump = max(0.0, self.urgency.jump)
        if policy == "wspt":
            return (1 + jump) / max(1, self.uncached_tokens)
        if policy == "deadline" and self.latest_start < math.inf:
            return jump - self.latest_start
        return jump + (self.arrived if policy == "lcfs" else -self.arrived - self.order_penalty_s)
