"""Goodput: the share of requests whose latencies stay within objectives, absolute and relative.

A fixed TTFT is out of reach for a long prompt wherever it is sent, and easy for a short one. So the
relative objective grows with the time that the prompt takes on an idle engine with an empty cache.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from ...process.setting_checks import require_positive
from ...process.settings import option


@dataclass(frozen=True)
class Goodput:
    """Shares of all requests that were sent, refused and failed ones included; None: unknown."""

    absolute: float | None = None
    relative: float | None = None


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What a good answer is. Raises ConfigError, naming the key, on a value that is not above 0."""

    slo_ttft_ms: float = option(1000.0, "TTFT that a good answer stays within.")
    slo_itl_ms: float = option(50.0, "Mean ITL that a good answer stays within.")
    slo_relative_base_ms: float = option(
        200.0,
        "Relative objective: TTFT stays within this and --slo-relative-factor times the prompt's"
        " time on an idle engine that has none of it cached.",
    )
    slo_relative_factor: float = option(1.5, "See --slo-relative-base-ms.")
    slo_relative_itl_ms: float = option(25.0, "Relative objective: mean ITL stays within this.")

    def __post_init__(self) -> None:
        for each in fields(ObjectiveConfig):
            require_positive(self, each.name)

    def goodput(
        self, requests: int, *, ttft_ms: ArrayLike, itl_ms: ArrayLike, cold_ms: ArrayLike
    ) -> Goodput:
        """Of `requests` sent, those served have these TTFTs, own mean ITLs and cold times (ms).

        A cold time is how long the whole prompt takes on an idle engine. An answer of one token has
        an ITL of 0 or nan, which is within any objective.
        """
        if requests < 1:
            return Goodput()
        ttft, itl, cold = (np.asarray(each, np.float64) for each in (ttft_ms, itl_ms, cold_ms))
        itl = np.nan_to_num(itl, nan=0.0, posinf=math.inf)
        bound = self.slo_relative_base_ms + self.slo_relative_factor * cold
        absolute = (ttft <= self.slo_ttft_ms) & (itl <= self.slo_itl_ms)
        relative = (ttft <= bound) & (itl <= self.slo_relative_itl_ms)
        return Goodput(int(absolute.sum()) / requests, int(relative.sum()) / requests)
