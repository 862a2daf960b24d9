"""An API server for each test, and clients of it that are closed behind it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.servers.kubernetes import KubernetesServer
from support.servers.kubernetes.clients import Clients


@pytest.fixture
async def server() -> AsyncIterator[KubernetesServer]:
    async with KubernetesServer() as running:
        yield running


@pytest.fixture
async def clients(server: KubernetesServer, tmp_path: Path) -> AsyncIterator[Clients]:
    made = Clients(server, tmp_path)
    yield made
    await made.close()
