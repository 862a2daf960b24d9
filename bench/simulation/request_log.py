"""What happened to each request of a simulation, and to the engines, as arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...engines.mocker import EngineStats

SERVED, REJECTED, FAILED = 0, 1, 2


@dataclass(frozen=True)
class RequestLog:
    """A run's requests: arrays by their place in the trace; times in seconds of virtual time.

    `gaps` are the times between tokens, and how many tokens came after each of them. A message of
    KV events is counted in `lost_messages` where it got lost; `announcements` and `replays` count
    what the engines sent again because of that.
    """

    arrival_s: NDArray[np.float64]
    status: NDArray[np.uint8]  # SERVED, REJECTED (overload) or FAILED (cannot run)
    worker: NDArray[np.int32]  # -1 if it was sent to none
    first_s: NDArray[np.float64]  # when its first token came; nan if none did
    last_s: NDArray[np.float64]
    cached_tokens: NDArray[np.int64]  # of its prompt, found in the engine's cache
    preemptions: NDArray[np.int64]
    gaps: tuple[NDArray[np.float64], NDArray[np.uint32]]
    engines: list[EngineStats]
    end_s: float
    lost_messages: int
    announcements: int
    replays: int
    queued_s: NDArray[np.float64]  # how long it waited in the router before it was sent
    queue_max: int  # most requests that waited there at a time
    first_failure: str
    remote: NDArray[np.bool_] | None = None  # whose prompt a prefill worker computed
    handoff_s: NDArray[np.float64] | None = None  # from its end to the first token; nan: not remote
    transfer_s: NDArray[np.float64] | None = None  # of that, while its blocks were under way

    @property
    def served(self) -> NDArray[np.bool_]:
        """Which requests were answered to their end."""
        served: NDArray[np.bool_] = self.status == SERVED
        return served
