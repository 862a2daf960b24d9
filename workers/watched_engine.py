"""One engine that the health monitor watches."""

import asyncio
import math

from ..process.supervised import stopped
from .dialects import EngineClient
from .engine_facts import EngineFacts
from .health_tracker import HealthTracker
from .registry import WorkerState
from .worker_url import WorkerUrl


class WatchedEngine:
    """What the health monitor keeps of an engine."""

    def __init__(
        self, url: WorkerUrl, tracker: HealthTracker, client: EngineClient, origin: str = "static"
    ) -> None:
        self.url = url
        self.origin = origin  # where we have it from
        self.tracker = tracker
        self.client = client
        self.facts = EngineFacts()
        self.worker_id: int | None = None  # the id it is registered under
        self.alive: bool | None = None  # ready and connected, as outlier detection was told
        self.ejected = False
        self.draining = False  # it gets no new requests, whatever its health
        self.weight = url.weight
        self.was_ready = False  # what _publish saw last
        self.published: tuple[WorkerState, str, EngineFacts] | None = None
        self.probes = 0
        self.probing = False
        self.probed_at = -math.inf  # when the last probe began
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it answers its probes and is not ejected."""
        return self.tracker.state is WorkerState.READY and not self.ejected

    @property
    def takes_requests(self) -> bool:
        return self.is_ready and not self.draining

    @property
    def state(self) -> WorkerState:
        """What it is registered as, ejections apart."""
        return WorkerState.DRAINING if self.draining else self.tracker.state

    async def close(self) -> None:
        await stopped(self.task)
        await self.client.close()
