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
        attention_ms: float = 0.0,
    ) -> Self: ...
    def prefill_ms(self, tokens: int) -> float:
        """To compute `tokens` prompt tokens of one step, all requests together."""

    def attention_ms(self, tokens: int, context: int) -> float:
        """More, for `tokens` prompt tokens of one request that follow `context` computed ones.

        Each attends to those before it and to itself, half of which the sum leaves out.
        """

    def decode_ms(self, tokens: int, requests: int) -> float:
        """To compute one token for each of `requests`, which are `tokens` long together.

        A prefix they share counts for each of them: each reads all that it attends to.
        """
