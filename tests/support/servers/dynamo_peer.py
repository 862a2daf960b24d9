"""NVIDIA Dynamo's own mock workers and frontend, as child processes of a test.

They need a Python that has ai-dynamo 1.6.1, which the environment names in DYNAMO_PEER.
"""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from support.free_port import free_port
from support.servers.child import Child

from dynamo_router.bench.load.dynamo_peer import (
    HOST,
    dynamo_environ,
    frontend_arguments,
    mocker_arguments,
    write_model,
)

PEER = os.environ.get("DYNAMO_PEER")


class DynamoProcess(Child):
    """A module of Dynamo's with `environ`; `planes` are its flags for discovery and events."""

    def __init__(self, folder: Path, environ: dict[str, str], backend: str, events: str) -> None:
        super().__init__(folder)
        self.folder, self.environ = folder, environ
        self.planes = ["--discovery-backend", backend, "--event-plane", events]

    def module(self) -> list[str]:
        raise NotImplementedError

    def command(self) -> list[str]:
        environ = {**dynamo_environ(self.folder), **self.environ}
        settings = (f"{name}={value}" for name, value in environ.items())
        return ["/usr/bin/env", *settings, str(PEER), "-m", *self.module(), *self.planes]


class DynamoMockers(DynamoProcess):
    """`count` mock workers, each an instance of its own, with blocks of 16 tokens."""

    def __init__(
        self,
        folder: Path,
        environ: dict[str, str],
        backend: str,
        events: str,
        count: int,
        *more: str,
    ) -> None:
        """`more`: further flags."""
        super().__init__(folder, environ, backend, events)
        self.count, self.more = count, more
        self._model = folder / "model"
        write_model(self._model)

    def module(self) -> list[str]:
        return [*mocker_arguments(self._model, self.count), *self.more]

    def ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()
        return True  # who is there is seen in the store


class DynamoFrontend(DynamoProcess):
    """Dynamo's frontend, routing by KV cache."""

    def __init__(self, folder: Path, environ: dict[str, str], backend: str, events: str) -> None:
        super().__init__(folder, environ, backend, events)
        self.port = free_port()

    def module(self) -> list[str]:
        return frontend_arguments(self.port)

    def ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()
        try:
            return bool(self.ask("/v1/models")["data"])
        except (urllib.error.URLError, ConnectionError):
            return False

    def ask(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://{HOST}:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)
