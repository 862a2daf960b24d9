"""Objectives: what a good answer is, and how many answers have to be good."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..process.setting_checks import require_positive
from ..process.settings import bad_setting, option


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """Raises ConfigError, naming the key, on a bad value."""

    objective_ttft_ms: float = option(1000.0, "TTFT that a good answer stays within.", short=True)
    objective_itl_ms: float = option(50.0, "Mean ITL that a good answer stays within.", short=True)
    target: float = option(0.95, "Share of requests whose answers have to be good.", short=True)
    confidence: float = option(
        0.9, "Chance, over the forecast's scenarios, with which a plan has to reach --target."
    )

    def __post_init__(self) -> None:
        require_positive(self, "objective_ttft_ms", "objective_itl_ms")
        for key in ("target", "confidence"):
            value = getattr(self, key)
            if not 0 < value <= 1:
                raise bad_setting(key, f"{value} must be in 0..1, not 0")

    def good(self, ttft_ms: ArrayLike, itl_ms: ArrayLike) -> NDArray[np.bool_]:
        """Which answers are good. A TTFT of nan is an answer that never came; an ITL of nan is
        that of an answer of one token."""
        ttft, itl = np.asarray(ttft_ms, np.float64), np.asarray(itl_ms, np.float64)
        within: NDArray[np.bool_] = ttft <= self.objective_ttft_ms
        return within & ~(itl > self.objective_itl_ms)
