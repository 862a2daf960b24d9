"""Wire: one engine of a test, however it is called."""

from contextlib import AsyncExitStack
from typing import Any

from support.handoffs.fabric import LEASE_S, Fabric, FakeLegs

from dynamo_router.workers.health import HealthMonitor

PORT, ENGINE = 5600, "engine-1"


class Wire:
    """One engine that listens, from entering `stack` on. `attach` makes it a worker."""

    shape = "relay"
    runs_whole = True
    lease_s = LEASE_S

    def __init__(self, fabric: Fabric, role: str) -> None:
        self.legs, self.role = FakeLegs(fabric), role
        self.bodies: list[Any] = []

    async def enter(self, stack: AsyncExitStack) -> None:
        raise NotImplementedError

    def attach(self, monitor: HealthMonitor) -> None:
        raise NotImplementedError
