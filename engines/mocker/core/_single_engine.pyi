from collections.abc import Sequence
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from ....indexer.wire import StorageTier
from ....workers.retention import Span
from ..config import EngineConfig
from ._timing import StepTiming

_Token = tuple[int, bool, int, int]
"""request, whether it was the last one, cached prompt tokens, preemptions so far"""
_Change = tuple[int, int, int] | tuple[bool, StorageTier, list[int]]
"""blocks stored on the device: (request, its first block, how many); or blocks that were cached
before: (whether they came, else left; which tier; their sequence hashes)"""

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
        retention: Sequence[Span] | None,
        handoff: int = 0,
    ) -> None:
        """Queue a request; ValueError if the columns are too short for it.

        `retention`: how its blocks are kept once it is over; None: not given. `handoff`: as
        Handoff in virtual.py.
        """

    def arrive(self, request: int) -> list[_Change]:
        """A prompt that was handed over has come, if a request waits for it: what changed."""

    def release(self, request: int) -> bool:
        """A prompt that was kept for its reader is kept no longer; False if there is none."""

    def prefetch(
        self,
        sequence_hashes: NDArray[np.uint64],
        local_hashes: NDArray[np.uint64],
        request: int,
        since_s: float,
    ) -> tuple[int, list[_Change]]:
        """Load what lower tiers have of these blocks; (how many, changes of the cache).

        It begins so many of the engine's seconds after its last step ended, below 0 while that
        runs.
        `request` is who the blocks belong to in the changes.
        """

    def abort(self, request: int) -> bool: ...
    def step(
        self, idle_s: float
    ) -> tuple[float, list[_Token], list[_Change], int, int, list[tuple[int, int]]]:
        """(seconds, tokens, changes of the cache, prompt tokens computed, preempted, requests that
        were given blocks for a prompt which is handed over, with the tokens they have of it).

        `idle_s` of the engine's time have passed since the step before it ended.
        """

    def cache(self, tier: int) -> list[tuple[int, int | None, int, int]]:
        """(sequence hash, parent's, local hash, holders) of a tier's blocks, as they came.

        0 is the device. IndexError if there is no such tier.
        """
