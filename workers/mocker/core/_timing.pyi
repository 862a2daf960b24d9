from typing import Self, final

import numpy as np
from numpy.typing import NDArray

@final
class StepTiming:
    """How long a step takes, in milliseconds; see timing.py."""

    def __new__(
        cls,
        total_tokens: float,
        decode_speedup: float,
        arrays: tuple[NDArray[np.float64], ...] | None = None,
    ) -> Self: ...
    def prefill_ms(self, tokens: int) -> float:
        """To compute `tokens` prompt tokens of one step, all requests together."""

    def decode_ms(self, tokens: int, requests: int) -> float:
        """To compute one token for each of `requests`, which are `tokens` long together.

        A prefix they share counts for each of them: each reads all that it attends to.
        """
