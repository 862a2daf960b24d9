"""Fixtures of the prefill queue's tests."""

from collections.abc import Iterator

import pytest
from support.servers.discovered_fleet import backend
from support.servers.jetstream import JetStreamServer

__all__ = ["backend"]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetStreamServer]:
    server = JetStreamServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()
