"""A nats-server of a test's own that asks who connects, or has TLS."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.free_port import free_port
from support.polling import until

from dynamo_router.runtime.event_planes.embedded_nats import find_nats_server, probe


class SecuredNats:
    """Its port, and a way to kill it."""

    def __init__(self, port: int, process: asyncio.subprocess.Process) -> None:
        self.port, self._process = port, process

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def secured_nats(folder: Path, settings: dict[str, Any]) -> AsyncIterator[SecuredNats]:
    """Run a server with these settings of its configuration file until the block ends."""
    port = free_port()
    config = folder / "nats.json"
    config.write_text(json.dumps({"host": "127.0.0.1", "port": port, **settings}))
    process = await asyncio.create_subprocess_exec(
        find_nats_server(),
        "-c",
        str(config),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    server = SecuredNats(port, process)
    try:
        await until(lambda: probe(f"nats://127.0.0.1:{port}"), 60.0)
        yield server
    finally:
        await server.stop()
