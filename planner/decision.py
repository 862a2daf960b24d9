"""Decision: one change of a fleet, as it is kept in a store and shown."""

from typing import Literal

import msgspec

from .fleet import Fleet

DecisionState = Literal["open", "done", "abandoned"]
DecisionKind = Literal["plan", "rule", "hold"]
"""`plan`: found by simulation; `rule`: a threshold between plans, which only adds; `hold`: it was
looked at, and nothing changes."""


class Score(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a candidate was worth over the simulated horizon.

    `attainment` is the mean share of good answers over the scenarios, `probability` the share of
    scenarios that reach the target, `cost` in engine seconds, twice as many where it is missed.
    """

    fleet: Fleet
    proposed_by: str
    cost: float
    engine_seconds: float
    attainment: float
    probability: float
    scenarios: int


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A record. Fields that a reader does not know are skipped.

    `id` grows by one with each decision of a pool. `at` and `expires` are seconds on the clock of
    the one who decides: in a store Unix time. An executor abandons an open decision that has
    expired, by the monotonic time since it read the record. `victims` are the workers to drain.
    `desired` is what the planner wanted before constraints cut it.
    """

    id: int
    at: float
    before: Fleet = msgspec.field(name="from")
    after: Fleet = msgspec.field(name="to")
    kind: DecisionKind = "plan"
    pool: str = "default"
    reasons: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()
    scenarios: int = 0
    desired: Fleet | None = None
    victims: tuple[int, ...] = ()
    expires: float | None = None
    state: DecisionState = "open"

    @property
    def changes(self) -> bool:
        return self.before != self.after

    def in_state(self, state: DecisionState) -> "Decision":
        return msgspec.structs.replace(self, state=state)
