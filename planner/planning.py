"""What every plan is made with: its settings, the CPU that it may take, the truth for bounds."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..bench.simulation import SampledRequest
from ..process.setting_checks import require_finite, require_positive
from ..process.settings import bad_setting, option
from .candidates import ROLE_SETS, Roles

DRAIN_S = 15.0
"""What a drain is taken to need."""
LOOK_EVERY = 64
"""Requests of a simulation from one look at the CPU clock to the next."""
RESERVE = 0.05
"""of the CPU, for what a plan does beside simulating."""
NEWEST = 0.3  # weight of the newest cost
REQUEST_S, BODY_S = 1.5e-4, 2.5e-5
"""CPU seconds that a CountedBudget takes a simulated request for, and one of the window. Measured
on five days of `bench plan`, each with a clock: 121, 129, 130, 161 and (prompts of Mooncake's) 245
us, and 15 to 31 us."""


@dataclass(frozen=True, kw_only=True)
class PlanningConfig:
    """How plans are made. Raises ConfigError, naming the key, on a bad value."""

    start_up_s: float = option(
        60.0, "Seconds from the decision until a new engine serves.", short=True
    )
    roles: Roles = option(
        "aggregated", "Roles that engines may have.", choices=ROLE_SETS, short=True
    )
    plan_every_s: float = option(60.0, "Seconds from one plan to the next.")
    plan_budget_s: float = option(0.5, "CPU seconds that a plan may take.", short=True)
    window_s: float = option(600.0, "Seconds of the past whose requests a plan makes more of.")

    def __post_init__(self) -> None:
        require_finite(self, 0, "start_up_s")
        require_positive(self, "plan_every_s", "plan_budget_s")
        require_finite(self, 60, "window_s")
        if self.roles not in ROLE_SETS:
            raise bad_setting("roles", f"{self.roles!r} is none of {', '.join(ROLE_SETS)}")

    @property
    def horizon_s(self) -> float:
        """As far as a plan looks: until the next plan's engines would serve."""
        return self.start_up_s + DRAIN_S + self.plan_every_s


class Oracle(NamedTuple):
    """The truth, for bounds: requests from a time to another, instead of a forecast."""

    requests: Callable[[float, float], tuple[list[SampledRequest], NDArray[np.float64]]]


class OutOfCpuError(Exception):
    """A simulation took more than was left for it."""


class CpuBudget:
    """The CPU of a plan, and what a request is found to cost: one simulated, and one of the window.

    `budget_s`: of a plan. `clock`: of CPU seconds.
    """

    def __init__(self, budget_s: float, clock: Callable[[], float] = time.process_time) -> None:
        self.budget_s, self._clock = budget_s, clock
        self._began = clock()
        self.per_request_s, self.per_body_s = 2e-4, 2e-5

    def begin(self) -> None:
        """A plan begins."""
        self._began = self._clock()

    @property
    def spent_s(self) -> float:
        """Since the plan began."""
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        """For simulations: a part is kept for what comes after them."""
        return (1 - RESERVE) * self.budget_s - self.spent_s

    def note_bodies(self, count: int, took_s: float) -> None:
        """`count` requests of the window were read."""
        self.per_body_s += NEWEST * (took_s / max(1, count) - self.per_body_s)

    def note_simulated(self, count: int) -> None:
        """`count` more requests were simulated."""

    def watch(self, limit_s: float) -> "Watch":
        """Over a simulation that may take `limit_s`."""
        return Watch(self, self._clock, limit_s)


class CountedBudget(CpuBudget):
    """A budget that is spent by work, at REQUEST_S and BODY_S, and not by the time that it takes:
    a plan is the same on any machine, however busy that is."""

    def __init__(self, budget_s: float) -> None:
        """`budget_s`: of a plan, in the CPU seconds that its work is taken for."""
        self._work_s = 0.0
        super().__init__(budget_s, lambda: self._work_s)
        self.per_request_s, self.per_body_s = REQUEST_S, BODY_S

    def note_bodies(self, count: int, took_s: float) -> None:
        self._work_s += count * BODY_S

    def note_simulated(self, count: int) -> None:
        self._work_s += count * REQUEST_S


class Watch:
    """Raises OutOfCpuError, once what a request costs is noted, where the limit is passed."""

    def __init__(self, budget: CpuBudget, clock: Callable[[], float], limit_s: float) -> None:
        self._budget, self._clock, self._limit_s = budget, clock, limit_s
        self._began, self._routed, self._noted = clock(), 0, 0

    def on_request(self, routed: int) -> None:
        """Called with the number of requests routed."""
        self._routed = routed
        if routed % LOOK_EVERY == 0:
            self.look()

    def look(self) -> None:
        """At the clock."""
        self._note(self._routed)
        took = self._clock() - self._began
        if took > self._limit_s:
            self._budget.per_request_s = took / max(1, self._routed)
            raise OutOfCpuError

    def ended(self, requests: int) -> None:
        """The whole simulation was run, of `requests` requests."""
        self._note(requests)
        took = (self._clock() - self._began) / max(1, requests)
        self._budget.per_request_s += NEWEST * (took - self._budget.per_request_s)

    def _note(self, routed: int) -> None:
        self._budget.note_simulated(routed - self._noted)
        self._noted = routed
