"""Observation: what a planner knows of a pool at one moment. Unknown is None, never zero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .fleet import ROLES, Fleet, Role

WorkerState = Literal["starting", "serving", "draining", "failed"]
"""`failed`: it was still starting when the longest start-up had passed."""


@dataclass(frozen=True, kw_only=True)
class ObservedWorker:
    """An engine as discovery shows it, which is not what was asked for.

    `age_s`: seconds since it was started, or first seen. `expected_ready_s`: seconds from now
    until a starting one serves; None: unknown. `served` counts the requests that it finished,
    `running` and `waiting` those that it has; `active_blocks` of `total_blocks` KV-cache blocks are
    in use. None: not reported.
    """

    worker_id: int
    role: Role
    state: WorkerState
    age_s: float
    expected_ready_s: float | None = None
    served: int = 0
    running: int | None = None
    waiting: int | None = None
    active_blocks: int | None = None
    total_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """A request of the last minutes, as the server's record has it.

    `arrival_s` is on the clock of `Observation.at`. `block_ids` name the blocks of its prompt, of
    `Observation.block_size` tokens: equal ids are equal beginnings. Output and latencies are None
    while they are unknown: it waits or runs, or was lost. ValueError for a time or a latency that
    is no number, or for fewer than no tokens.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int | None = None
    block_ids: tuple[int, ...] = ()
    session: int | str | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    cached_tokens: int | None = None
    worker_id: int | None = None

    def __post_init__(self) -> None:
        latencies = (self.ttft_ms or 0.0, self.itl_ms or 0.0)
        tokens = self.prompt_tokens > 0 and (self.output_tokens or 0) >= 0
        if not (
            tokens and math.isfinite(self.arrival_s) and all(0 <= n < math.inf for n in latencies)
        ):
            raise ValueError(f"a request that makes no sense: {self}")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One pool. `at` is in seconds of a clock that only moves on.

    `requests` are those of the last `window_s` seconds in the order of their arrival; None: the
    server's records cannot be read, which is no silence. `queued` and `queue_age_s` are of the
    router's queue; None: not reported. `unmatched` are reports of workers that discovery has not,
    `senseless` records of requests that were left out, as they make no sense. ValueError for a
    time, a window or a size of blocks that cannot be.
    """

    at: float
    pool: str = "default"
    workers: Sequence[ObservedWorker] = ()
    requests: Sequence[ObservedRequest] | None = None
    window_s: float = 0.0
    block_size: int = 512
    queued: int | None = None
    queue_age_s: float | None = None
    unmatched: int = 0
    senseless: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.at):
            raise ValueError(f"an observation at {self.at} s is at no time")
        if not 0 <= self.window_s < math.inf:
            raise ValueError(f"an observation of {self.window_s} s")
        if self.block_size < 1:
            raise ValueError(f"blocks of {self.block_size} tokens")

    def fleet(self, *states: WorkerState) -> Fleet:
        """Workers in these states; without any, those that serve or will: neither draining nor
        failed."""
        counted = states or ("starting", "serving")
        return Fleet(
            *(
                sum(each.role == role and each.state in counted for each in self.workers)
                for role in ROLES
            )
        )

    @property
    def held(self) -> Fleet:
        """Workers that take an accelerator: all of them, until they are gone."""
        return self.fleet("starting", "serving", "draining", "failed")


def choose_victims(seen: Observation, after: Fleet) -> tuple[int, ...]:
    """Workers to drain for the fleet `after`: failed ones, those that start, the least busy."""
    victims = [each.worker_id for each in seen.workers if each.state == "failed"]
    for role, count in after:
        there = [
            each
            for each in seen.workers
            if each.role == role and each.state in ("starting", "serving")
        ]
        there.sort(
            key=lambda each: (
                each.state == "serving",
                each.running or 0,
                each.age_s,
                each.worker_id,
            )
        )
        victims += [each.worker_id for each in there[: max(0, len(there) - count)]]
    return tuple(victims)
