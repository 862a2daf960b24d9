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


class NixlKeys:
    """The key of a NixlConnector's parcel: the id that the prefill engine gave it."""

    def key(self, request_id: str, phase: str, params: dict[str, Any]) -> str:
        if phase == "prefill":
            return ""
        names = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
        assert all(params.get(name) for name in names), params
        return str(params["remote_request_id"])


class NixlPushKeys:
    """Of a NixlPushConnector: both legs have the same request id."""

    def key(self, request_id: str, phase: str, params: dict[str, Any]) -> str:
        if phase == "decode":
            assert params == {
                "do_remote_decode": False,
                "do_remote_prefill": True,
                "remote_engine_id": ENGINE,
                "remote_request_id": request_id,
                "remote_host": "127.0.0.1",
                "remote_port": PORT,
                "tp_size": 2,
                "pp_size": 1,
            }
        return request_id


class MooncakeKeys:
    """Of a MooncakeConnector: the id of the transfer."""

    def key(self, request_id: str, phase: str, params: dict[str, Any]) -> str:
        assert params["transfer_id"].startswith("xfer-")
        if phase == "decode":
            assert params["remote_engine_id"] == ENGINE
            assert params["remote_bootstrap_addr"].startswith("http://127.0.0.1:")
        return str(params["transfer_id"])


def handed_over(key: str) -> dict[str, Any]:
    """The parcel of a NixlConnector's prefill engine."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": ENGINE,
        "remote_request_id": key,
        "remote_block_ids": [[1, 2]],
        "remote_host": "127.0.0.1",
        "remote_port": PORT,
    }
