from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from ..config import EngineConfig
from ._timing import StepTiming

_Token = tuple[int, bool, int, int]
"""request, whether it was the last one, cached prompt tokens, preemptions so far"""
_Change = tuple[int, int, int] | list[int]
"""blocks stored: (request, its first block, how many); or the sequence hashes of blocks removed"""

@final
class SingleEngine:
    """An engine of hashes; see engine.py. The requests' numbers are the caller's."""

    running: int
    waiting: int
    active_blocks: int
    inactive_blocks: int
    def __new__(cls, config: EngineConfig, timing: StepTiming) -> Self: ...
    def submit(
        self,
        request: int,
        prompt: int,
        output: int,
        sequence_hashes: NDArray[np.uint64],
        local_hashes: NDArray[np.uint64],
    ) -> None:
        """Queue a request; ValueError if the columns are too short for it."""

    def abort(self, request: int) -> bool: ...
    def step(self) -> tuple[float, list[_Token], list[_Change], int, int]:
        """(seconds, tokens, changes of the cache, prompt tokens computed, preempted)."""

    def cache(self) -> list[tuple[int, int | None, int, int]]:
        """(sequence hash, parent's, local hash, holders) of the cached blocks, as they came."""
