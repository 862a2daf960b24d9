"""A router and engines as processes that meet in a Kubernetes cluster: pods come, go, are started
again, tokens end, the API server forgets; requests go on all the while.
"""

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.polling import until
from support.servers.kubernetes.pod_fleet import PodFleet
from support.servers.request_load import request_load

DEADLINE_S = 60.0


def among(fleet: PodFleet, *names: str) -> Callable[[], Awaitable[bool]]:
    return lambda: fleet.routes_among(*names)


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_pods_come_and_go_under_requests(tmp_path: Path, dialect: str) -> None:
    async with PodFleet(tmp_path, dialect) as fleet:
        await fleet.add("worker-0", "worker-1")
        await until(among(fleet, "worker-0", "worker-1"), DEADLINE_S)
        rows = await fleet.workers()
        assert {row["origin"] for row in rows} == {"kubernetes"}
        assert {row["dialect"] for row in rows} == {dialect}
        async with request_load(fleet.ask) as load:
            await fleet.add("worker-2")
            await until(among(fleet, "worker-0", "worker-1", "worker-2"), DEADLINE_S)
            await load.more()
            await fleet.remove("worker-0")
            await until(among(fleet, "worker-1", "worker-2"), DEADLINE_S)


async def test_a_container_that_is_started_again_is_called_at_its_new_port(tmp_path: Path) -> None:
    async with PodFleet(tmp_path, "trtllm") as fleet:
        await fleet.add("worker-0")
        await until(among(fleet, "worker-0"), DEADLINE_S)
        (before,) = await fleet.workers()
        await fleet.ask(1)
        await fleet.running.pop("worker-0").stop(signal.SIGKILL)
        await fleet.mark_ready()
        await fleet.run("worker-0")
        await fleet.mark_ready()

        async def moved() -> bool:
            rows = await fleet.workers()
            return [row["address"] for row in rows] != [before["address"]] and (
                await fleet.routes_among("worker-0")
            )

        await until(moved, DEADLINE_S)
        await fleet.ask(2)


async def test_the_api_server_ends_tokens_forgets_and_is_away(tmp_path: Path) -> None:
    async with PodFleet(tmp_path, "trtllm") as fleet:
        await fleet.add("worker-0", "worker-1")
        await until(among(fleet, "worker-0", "worker-1"), DEADLINE_S)
        async with request_load(fleet.ask) as load:
            fleet.rotate_tokens()
            fleet.server.cut_watches()
            await fleet.add("worker-2")
            await until(among(fleet, "worker-0", "worker-1", "worker-2"), DEADLINE_S)
            # While it is away a pod goes, and the history of that is compacted: 410 Gone.
            await fleet.server.stop()
            await load.more()
            asked = len(fleet.server.requests)
            await fleet.running.pop("worker-1").stop(signal.SIGTERM)
            await fleet.mark_ready()
            fleet.server.objects.compact()
            await load.more()
            await fleet.server.start()
            await until(among(fleet, "worker-0", "worker-2"), DEADLINE_S)
            lists = [query for _, path, query in fleet.server.requests[asked:]
                     if path.endswith("endpointslices") and "watch" not in query]  # fmt: skip
            assert lists, "it listed again"
