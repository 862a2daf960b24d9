"""PlanningBrain: plans in a process of its own, at low priority, so that nothing else is moved."""

from collections.abc import Callable, Sequence

from ...workers.records import ModelCard
from ..constraints import Change
from ..decision import Decision
from ..observation import Observation
from .config import PlannerConfig

MODULE = "dynamo_router.planner.live.plan_process"
START_S = 30.0
"""What a process takes to start, at low priority on a busy machine."""
WALL_PER_CPU = 6.0
"""Seconds that a second of CPU time may take there."""


class PlanningBrain:
    """A Brain. The longest plan takes its budget of CPU time, which the process itself keeps."""

    def __init__(self, config: PlannerConfig, card: Callable[[], ModelCard | None]) -> None:
        """`card`: of one of the engines, None while there is none."""
        self._config, self._card = config, card

    async def propose(self, seen: Observation, changes: Sequence[Change]) -> Decision:
        raise NotImplementedError

    def alarm(self, seen: Observation) -> str:
        raise NotImplementedError
