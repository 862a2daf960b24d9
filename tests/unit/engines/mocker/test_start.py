"""How mock engines start: what they are found under, and what ends a start that has to wait."""

import asyncio
import os
import signal
import socket

import pytest
from structlog.testing import capture_logs
from support.free_port import free_port
from support.polling import until

from dynamo_router.engines.mocker.config import MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet, run_mocker
from dynamo_router.workers.records.config import DiscoveryConfig
from dynamo_router.workers.worker_url import parse_worker_url


async def test_an_engine_on_ipv6_has_an_address_that_can_be_called() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with MockFleet(MockerConfig(host="::1", port=0)) as fleet:
        (engine,) = fleet.engines
        url = parse_worker_url(engine.url)
        assert url.address == engine.address and engine.address.startswith("[::1]:")
        assert url.default_id == engine.worker_id


async def test_a_signal_ends_a_start_that_waits_for_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NATS_SERVER", f"nats://127.0.0.1:{free_port()}")
    config = MockerConfig(port=0, discovery=DiscoveryConfig(discovery="nats"))
    with capture_logs() as logs:
        running = asyncio.create_task(run_mocker(config))
        await until(lambda: any("wait for the store" in line["event"] for line in logs))
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await running
