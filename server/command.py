"""dynamo-router serve: runs a Server until a signal, then drains it."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import structlog
import uvloop

from ..base.errors import ConfigError
from ..base.urls import redact_text
from ..process.logs import LogOutput
from ..process.settings import SettingsSource
from ..process.system import StopSignals, allow_open_files, on_hangup, run_until
from .config import ServeConfig
from .config_check import check_snapshot_path, vain_settings
from .fronts import Supervisor

GC_THRESHOLDS = (2_000, 50, 100)
"""The collector stops the loop for some 0.1 us an object, on a busy machine for ten times that: it
looks at a few at a time, and seldom again at what it saw. Requests make no cycles."""
OPEN_FILES = 1 << 16

log = structlog.get_logger(__name__)


class Service(Protocol):
    """What a process serves, made but not started."""

    @property
    def config(self) -> ServeConfig:
        """What it is run by now."""
        ...

    @property
    def ready_line(self) -> str:
        """What is said of it once it serves."""
        ...

    async def start(self) -> None:
        """Return once it serves. ConfigError if it cannot."""

    def reload(self) -> None:
        """Read the configuration again, if it can be."""

    def turn_away(self) -> None:
        """Say by health that nobody should come any more."""

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and let those in flight end for at most `grace_s`."""

    async def close(self) -> None:
        """End what is left. Idempotent."""


def run(
    config: ServeConfig,
    source: SettingsSource[Any] | None,
    make_server: Callable[[LogOutput], Service],
) -> int:
    """The command: serve until a signal, then drain. 1, and a line on why, if it cannot start.

    `source` is where the configuration came from. `make_server` makes what one process serves.
    """

    def supervise(output: LogOutput) -> Supervisor:
        warn()
        return Supervisor(config)

    def warn() -> None:
        for text in vain_settings(source.current) if source is not None else ():
            log.warning(text)
        if config.index_snapshot is not None:
            check_snapshot_path(config.index_snapshot)

    def make(output: LogOutput) -> Service:
        warn()
        return make_server(output)

    return run_service(config, supervise if config.fronts.fronts > 1 else make)


def run_service(config: ServeConfig, make: Callable[[LogOutput], Service]) -> int:
    """Serve what `make` makes, on the event loop, until a signal; the process's exit code."""
    output = config.observability.open_log()
    allow_open_files(OPEN_FILES)  # a connection for each worker and each client
    # gRPC's core logs each fork and each peer that goes; we say what matters of that ourselves.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        uvloop.run(serve_until_signal(partial(make, output)))
    except ConfigError as error:
        print(f"dynamo-router: {redact_text(str(error))}", file=sys.stderr)
        return 1
    finally:
        output.close()
    return 0


async def serve_until_signal(make: Callable[[], Service]) -> None:
    """Serve until SIGINT or SIGTERM, then drain; a second signal ends that. After SIGTERM health
    says for `lame_duck_s` that nobody should come any more, before anybody is turned away. SIGHUP
    has the configuration read again.

    Prints one line when it is ready. ConfigError if it cannot start.
    """
    server = make()
    with StopSignals() as signals, on_hangup(server.reload):
        try:
            await run_until(asyncio.create_task(server.start()), signals.drain)
            if not signals.drain.is_set():
                # What is here now stays: the collector need not look at it again and again.
                gc.collect()
                gc.freeze()
                gc.set_threshold(*GC_THRESHOLDS)
                print(server.ready_line, flush=True)
                await signals.drain.wait()
                # Ctrl-C is a person's, whom no load balancer has to hear of first.
                config = server.config
                lame_duck_s = config.lame_duck_s if signals.first is signal.SIGTERM else 0.0
                if lame_duck_s:
                    print(f"not serving in {lame_duck_s:g} s", flush=True)
                    server.turn_away()
                    await run_until(asyncio.create_task(asyncio.sleep(lame_duck_s)), signals.end)
                print(f"draining for at most {config.drain_timeout_s:g} s", flush=True)
                draining = asyncio.create_task(server.drain(config.drain_timeout_s))
                await run_until(draining, signals.end)
        finally:
            await server.close()
