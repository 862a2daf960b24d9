"""A router and engines that meet in a cluster of three etcd members, whose leader is lost."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.polling import until
from support.servers.discovered_fleet import (
    Backend,
    all_registered,
    complete_one,
    finding,
    registered,
    until_ready,
)
from support.servers.etcd import EtcdServer, start_cluster
from support.servers.request_load import request_load

from dynamo_router.runtime.kv_stores import LEASE_TTL_S

WORKERS = 3
CONVERGED_S = 4 * LEASE_TTL_S
"""Twice of what is promised: the machine may be busy."""


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EtcdServer]]:
    running = start_cluster(tmp_path)
    monkeypatch.setenv("ETCD_ENDPOINTS", ",".join(member.url for member in running))
    yield running
    for member in running:
        member.kill()


@pytest.mark.parametrize("paused", [False, True])
async def test_requests_go_on_when_the_leader_is_lost(
    members: list[EtcdServer], paused: bool
) -> None:
    environ = {"ETCD_ENDPOINTS": ",".join(member.url for member in members)}
    backend = Backend("etcd", environ, None)
    async with finding(backend) as ports, registered(backend, WORKERS) as fleet:
        await until_ready(ports, WORKERS)
        ask = partial(complete_one, ports, "cluster")
        async with request_load(ask) as load:
            for _ in range(2):  # the second time, the leader is another one
                (leader,) = [m for m in members if await asyncio.to_thread(lambda m=m: m.leads)]
                leader.pause() if paused else leader.kill()
                # Whoever comes now is found, and whoever is there stays, by the others' word.
                async with registered(backend, 1):
                    await until_ready(ports, WORKERS + 1, CONVERGED_S)
                    await load.more()
                await until_ready(ports, WORKERS, CONVERGED_S)
                leader.resume() if paused else await leader.come_back()
                await until(lambda: all_registered(fleet), CONVERGED_S)
                await load.more()
