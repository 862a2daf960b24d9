"""A command that serves one engine: until a signal, or until the engine is lost."""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from ...process.standard_output import print_line
from ...process.system import StopSignals, run_until
from .config import ServingConfig
from .context import ServingContext
from .engine import ServedEngine
from .registration import WorkerRegistration
from .server import EngineServer

LOST = 1
"""The exit code if the engine stopped on its own."""
LOST_GRACE_S = 2.0
"""How long the ends of its requests may take to leave."""
MOST_REQUESTS = 65536
"""At a time."""

log = structlog.get_logger(__name__)


async def run_worker(config: ServingConfig, engine: ServedEngine, files: Mapping[str, Any]) -> int:
    """Serve until SIGINT or SIGTERM, then drain; a second signal ends the drain. The exit code.

    Prints a line about the engine and then `ready`. If the engine is lost it is withdrawn at once,
    and its requests end as those of a worker that is gone. `files`: the part of the model's card
    that names its files. ConfigError if a port is in use or the engine cannot be started.
    """
    async with ServingContext(config, capacity=MOST_REQUESTS) as context:
        registration = None
        if context.store is not None:
            registration = WorkerRegistration(context.store, config, files, context.requests)
        server = EngineServer(
            config,
            engine,
            plane=context.plane,
            tls=context.tls,
            registration=registration,
        )
        with StopSignals() as signals:
            try:
                await run_until(asyncio.create_task(server.start()), signals.drain)
                if signals.drain.is_set():
                    return 0
                print_line(f"engine: {server.url} worker {server.worker_id}")
                print_line("ready")
                reason = await _lost_before(engine, signals.drain)
                if reason is not None:
                    log.error("the engine is lost", reason=reason)
                    await server.stop(LOST_GRACE_S)
                    return LOST
                print_line(f"draining: running requests have {config.drain_timeout_s:g} s")
                draining = asyncio.create_task(server.stop(config.drain_timeout_s))
                await run_until(draining, signals.end)
            finally:
                await server.stop()
    return 0


async def _lost_before(engine: ServedEngine, stopping: asyncio.Event) -> str | None:
    """Why the engine was lost; None if it was not until we are to stop."""
    lost = asyncio.ensure_future(engine.lost())
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({lost, stop}, return_when=asyncio.FIRST_COMPLETED)
        return lost.result() if lost.done() else None
    finally:
        lost.cancel()
        stop.cancel()
