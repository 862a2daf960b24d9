"""A real nats-server with JetStream on loopback."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.free_port import free_port
from support.servers.child import Child

from dynamo_router.runtime.event_planes import find_nats_server


class JetStreamServer(Child):
    ready_word = "Server is ready"

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder, self._options = folder, options

    def lose_data(self) -> None:
        """Be empty when it comes back: the server is not running."""
        shutil.rmtree(self._folder / "data")

    def command(self) -> list[str]:
        return [
            find_nats_server(), "--addr", "127.0.0.1", "--port", str(self.port),
            "--jetstream", "--store_dir", str(self._folder / "data"), *self._options,
        ]  # fmt: skip


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetStreamServer]:
    server = JetStreamServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()
