"""DataParallelEngine: the data-parallel ranks of one engine, as if it were one.

Each rank has a scheduler and a cache of its own. A request that names no rank goes to the one with
the fewest requests.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from ...base.clock import Clock
from ...base.errors import InvalidRequestError
from ..serving import EngineRequest, EngineUnavailableError, OnEvents
from .config import EngineConfig
from .engine import MockEngine, request_id_in_use
from .live import LiveEngine, TokenStream


class DataParallelEngine:
    """All calls are made on the loop that started it."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        speedup_ratio: float,
        clock: Clock,
        on_events: OnEvents,
        transfer_s: Callable[[int], float] = lambda tokens: 0.0,
    ) -> None:
        self.config = config
        self.failed = asyncio.Event()
        """a rank stopped on its own: see `failure`"""
        self.ranks = [
            LiveEngine(
                MockEngine(config),
                speedup_ratio=speedup_ratio,
                clock=clock,
                on_events=partial(on_events, rank),
                on_failure=self.failed.set,
                transfer_s=transfer_s,
            )
            for rank in range(config.dp_size)
        ]
        self._clock = clock
        self._startup_s = config.startup_time_s / speedup_ratio
        self._ready_at = 0.0
        self._awake = asyncio.Event()
        self._awake.set()

    @property
    def engines(self) -> list[MockEngine]:
        return [live.engine for live in self.ranks]

    @property
    def starting(self) -> bool:
        """Whether its start-up time is not over."""
        return self._clock.now() < self._ready_at

    @property
    def failure(self) -> str | None:
        """Why one of the ranks stopped on its own."""
        return next((live.failure for live in self.ranks if live.failure is not None), None)

    @property
    def busy(self) -> bool:
        return any(live.busy for live in self.ranks)

    def start(self) -> None:
        self._ready_at = self._clock.now() + self._startup_s
        for live in self.ranks:
            live.start()

    async def stop(self) -> None:
        """Stop at once; requests still here end as aborted."""
        await asyncio.gather(*(live.stop() for live in self.ranks))

    def slow_down(self, factor: float) -> None:
        """Steps begun from now on take `factor` times as long."""
        for live in self.ranks:
            live.slowdown = factor

    def hang(self, hung: bool) -> None:
        """Begin no step and, by way of `awake`, answer no call, until called with False."""
        for awake in (self._awake, *(live.awake for live in self.ranks)):
            (awake.clear if hung else awake.set)()

    async def awake(self) -> None:
        """Return once it does not hang."""
        await self._awake.wait()

    def submit(self, request: EngineRequest, rank: int | None) -> TokenStream:
        """Take a request in; `release` it in any case. Raises as LiveEngine.submit does."""
        live = self._rank(rank)
        if any(request.request_id in each for each in self.ranks):
            raise request_id_in_use(request.request_id)
        return live.submit(request)

    def rank_for(self, request: EngineRequest) -> LiveEngine:
        """The rank that would take a request now. Raises as `submit`."""
        return self._rank(request.dp_rank)

    def prefetch(self, request: EngineRequest, rank: int | None) -> int:
        """Load what lower tiers have of a prompt that is expected: how many blocks. Raises as
        LiveEngine.prefetch does."""
        return self._rank(rank).prefetch(request)

    def clear(self) -> None:
        """Empty the caches of all ranks. WorkerError, and nothing is done, if one may not be."""
        if self.starting:
            raise EngineUnavailableError("the engine is starting")
        for live in self.ranks:
            live.check_idle()
        for live in self.ranks:
            live.clear()

    @property
    def least_loaded(self) -> int:
        """The rank with the fewest requests."""
        return min(range(len(self.ranks)), key=self._requests)

    def abort(self, request_id: str) -> bool:
        """End a request early; False if there is none of that id."""
        return any(live.abort(request_id) for live in self.ranks)

    def release(self, stream: TokenStream) -> None:
        """The reader goes away: what is not finished is aborted. Idempotent."""
        for live in self.ranks:
            live.release(stream)

    def _rank(self, rank: int | None) -> LiveEngine:
        """The one that a call names, else the least loaded. WorkerError while the engine starts."""
        if self.starting:
            raise EngineUnavailableError("the engine is starting")
        if rank is None:
            rank = self.least_loaded
        if not 0 <= rank < len(self.ranks):
            raise InvalidRequestError(
                f"there is no data-parallel rank {rank}, the engine has {len(self.ranks)}",
                field="dp_rank",
            )
        return self.ranks[rank]

    def _requests(self, rank: int) -> int:
        engine = self.ranks[rank].engine
        return engine.running + engine.waiting
