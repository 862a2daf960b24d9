"""The planning process: `python -m dynamo_router.planner.live.plan_process`, run by PlanningBrain.

Reads a Setup and then observations, a line each, and prints an Answer to each of these.
"""

import os
import sys
from dataclasses import replace
from operator import attrgetter

import msgspec

from ...base.errors import UNREADABLE, RouterError
from ..observation import Observation, ObservedRequest
from ..planner import Planner
from ..what_if import EngineModel
from .brain import Answer, Setup

NICE = 19
_arrival = attrgetter("arrival_s")


class Window:
    """The requests of the window, of which each observation brings the new ones."""

    def __init__(self) -> None:
        self._requests: list[ObservedRequest] = []

    def whole(self, seen: Observation) -> Observation:
        """The observation with all requests of its window, by arrival."""
        if seen.requests is None:
            return seen
        begin = seen.at - seen.window_s
        kept = [each for each in (*self._requests, *seen.requests) if each.arrival_s >= begin]
        self._requests = sorted(kept, key=_arrival)
        return replace(seen, requests=self._requests)


def new_planner(setup: Setup, block_size: int) -> Planner:
    """`block_size`: tokens of a block id of observed requests."""
    planning = setup.planning
    model = EngineModel(
        engine=setup.engine,
        start_up_s=planning.start_up_s,
        speed=setup.speed,
        trace_block_size=block_size,
    )
    return Planner(planning, model, setup.objectives, setup.constraints)


def main() -> None:
    """Until the standard input ends."""
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    lines = sys.stdin.buffer
    setup = msgspec.json.decode(lines.readline(), type=Setup)
    planner: Planner | None = None
    window = Window()
    for line in lines:
        try:
            seen = window.whole(msgspec.json.decode(line, type=Observation))
            planner = planner or new_planner(setup, seen.block_size)
            answer = Answer(planner.observe(seen))
        except (*UNREADABLE, RouterError, ValueError, ArithmeticError) as error:
            answer = Answer(error=f"{type(error).__name__}: {error}")
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
