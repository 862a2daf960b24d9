import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import final

from ..base.clock import Clock
from .admission import LoadLimits
from .candidates import CandidateSource
from .placement import Placement
from .policy import Decision, ForecastPolicy

@final
class PlainDecisions:
    def __init__(
        self,
        lock: AbstractContextManager[object],
        clock: Clock,
        expire: Callable[[], float],
        source: CandidateSource,
        limits: LoadLimits,
        policy: ForecastPolicy,
        rng: random.Random,
    ) -> None: ...
    def seconds_until_free(self) -> float: ...
    def place(self, placement: Placement) -> Decision | None: ...
