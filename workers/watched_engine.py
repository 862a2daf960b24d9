"""One engine that the health monitor watches."""

import asyncio
import math

from ..runtime.supervised import stopped
from .engine_facts import EngineFacts
from .health_tracker import HealthTracker
from .registry import WorkerState
from .trtllm_client import TrtllmClient, WorkerUrl


class WatchedEngine:
    """What the health monitor keeps of an engine."""

    def __init__(self, url: WorkerUrl, tracker: HealthTracker, client: TrtllmClient) -> None:
        self.url = url
        self.tracker = tracker
        self.client = client
        self.facts = EngineFacts()
        self.worker_id: int | None = None  # the id it is registered under
        self.alive: bool | None = None  # ready and connected, as outlier detection was told
        self.ejected = False
        self.published: tuple[WorkerState, str, EngineFacts] | None = None  # what _publish saw last
        self.probes = 0
        self.probing = False
        self.probed_at = -math.inf  # when the last probe began
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        return self.tracker.state is WorkerState.READY and not self.ejected

    async def close(self) -> None:
        await stopped(self.task)
        await self.client.close()
