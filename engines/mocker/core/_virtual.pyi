from collections.abc import Sequence
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from ....workers.retention import Span
from ..config import EngineConfig
from ._timing import StepTiming

@final
class Fleet:
    """See virtual.py."""

    size: int  # engines: ranks of workers
    lost: int  # messages so far
    def __new__(
        cls,
        config: EngineConfig,
        timing: StepTiming,
        workers: int,
        *,
        speeds: NDArray[np.float64],
        record_events: bool,
        loss: float,
        seed: int,
    ) -> Self: ...
    def submit(
        self,
        engine: int,
        request: int,
        prompt: int,
        output: int,
        sequence_hashes: NDArray[np.uint64],
        local_hashes: NDArray[np.uint64],
        now: float,
        follow: float,
        retention: Sequence[Span] | None,
        handoff: int = 0,
    ) -> None: ...
    def restart(self, number: int, now: float) -> None: ...
    def settle_handoff(self, engine: int, request: int, state: int, now: float) -> bool:
        """The prompt that a request waits for has come, or one that is kept was read; False if
        there is none in that state."""

    def prefetch(
        self,
        engine: int,
        sequence_hashes: NDArray[np.uint64],
        local_hashes: NDArray[np.uint64],
        now: float,
    ) -> int: ...
    def waiting(self, engine: int) -> int: ...
    def running(self, engine: int) -> int: ...
    def advance(self, until: float, to_answer: bool) -> float: ...
    def announce(self, engine: int, now: float) -> None: ...
    def replay(self, number: int, first: int, last: int) -> bytes | None: ...
    def collect(self, until: float, first: int = 0, end: int = ...) -> bytes | None: ...
    def take_emissions(
        self,
    ) -> tuple[
        NDArray[np.float64],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int64],
    ]: ...
    def gaps(self) -> tuple[NDArray[np.float64], NDArray[np.uint32]]: ...
    def stats(self) -> list[tuple[int, float, float, int, float]]: ...
    def cache(self, engine: int, tier: int) -> list[tuple[int, int | None, int, int]]: ...
    def pools(self, engine: int) -> tuple[int, int]: ...
    def collected(self, engine: int) -> int: ...
    def is_busy(self) -> bool: ...
