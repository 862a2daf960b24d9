"""What runs the commands `serve` and `frontend`: serve until a signal, then drain."""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import structlog
import uvloop

from ..base.errors import ConfigError
from ..base.urls import redact_text
from ..process.huge_pages import use_huge_pages
from ..process.logs import LogOutput, escaped
from ..process.settings import SettingsSource
from ..process.standard_output import print_line
from ..process.system import StopSignals, allow_open_files, on_hangup, run_until
from .config import ServeConfig
from .config_check import check_snapshot_path, vain_settings
from .fronts import SHOW_STACK, FrontPlace, PlacedSettings, Pulse, Siblings, Supervisor

GC_THRESHOLDS = (5_000, 20, 100)
"""The collector stops the loop for some 0.1 us an object, on a busy machine for ten times that: it
looks at a few at a time, and seldom again at what it saw. Requests make no cycles; 64 that begin
together have some 10,000 objects."""
OPEN_FILES = 1 << 16

log = structlog.get_logger(__name__)


C = TypeVar("C", bound=ServeConfig)


def settle_memory() -> None:
    """What is here now stays: the collector need not look at it again and again, and huge pages
    hold it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    use_huge_pages()


class Service(Protocol):
    """What a process serves, made but not started."""

    @property
    def config(self) -> ServeConfig:
        """What it is run by now."""
        ...

    @property
    def ready_line(self) -> str:
        """The line printed once it serves."""
        ...

    async def start(self) -> None:
        """Return once it serves. ConfigError if it cannot."""

    def reload(self) -> None:
        """Read the configuration again, if it can be."""

    def turn_away(self) -> None:
        """Say by health that no new requests should come."""

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and let those in flight end for at most `grace_s`."""

    async def close(self) -> None:
        """End what is left. Idempotent."""


Make = Callable[[C, SettingsSource[C] | None, LogOutput, Siblings], Service]
"""Makes what one process serves of a configuration, where that is read again from, where it logs,
and the other processes that serve the same."""


def run_service(
    config: C,
    source: SettingsSource[C] | None,
    make: Make[C],
    vocab_size: Callable[[], int | None] = lambda: None,
) -> int:
    """Serve what `make` makes until a signal, then drain. 1, and a line on why, if it cannot start.

    `source` is where the configuration came from, to be read again at each SIGHUP. With several
    processes this one is their parent, or one of them; `vocab_size` is what mock engines for
    several generate from.
    """
    place = FrontPlace.take()
    if place is not None:
        faulthandler.register(SHOW_STACK)
        structlog.contextvars.bind_contextvars(process=f"front {place.number}")
        source = None if source is None else PlacedSettings(source, place)
        config = place.applied_to(config) if source is None else source.current.config
    output = config.observability.open_log()
    allow_open_files(OPEN_FILES)  # a connection for each worker and each client
    # gRPC's core logs each fork and each peer that goes; we say what matters of that ourselves.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

    def made() -> Service:
        if place is None:
            warn_of(config, source)
        if place is None and config.fronts.several:
            return Supervisor(config, source, vocab_size)
        return make(config, source, output, Siblings(place))

    try:
        uvloop.run(serve_until_signal(made, place))
    except ConfigError as error:
        print(f"dynamo-router: {escaped(redact_text(str(error)))}", file=sys.stderr)
        return 1
    finally:
        output.close()
    return 0


def warn_of(config: ServeConfig, source: SettingsSource[Any] | None) -> None:
    """Log which settings have no effect. ConfigError if there is no place for snapshots."""
    for text in vain_settings(source.current) if source is not None else ():
        log.warning(text)
    if config.index_snapshot is not None:
        check_snapshot_path(config.index_snapshot)


async def serve_until_signal(make: Callable[[], Service], place: FrontPlace | None = None) -> None:
    """Serve until SIGINT or SIGTERM, then drain; a second signal ends that. After SIGTERM health
    says for `lame_duck_s` that no new requests should come, before any is turned away. SIGHUP
    has the configuration read again.

    Prints one line when it is ready. ConfigError if it cannot start. `place`: whose parent looks
    whether this event loop runs.
    """
    server = make()
    pulse = None if place is None else Pulse(Path(place.folder), place.number)
    with StopSignals() as signals, on_hangup(server.reload):
        try:
            await run_until(asyncio.create_task(server.start()), signals.drain)
            if not signals.drain.is_set():
                settle_memory()
                print_line(server.ready_line)
                await signals.drain.wait()
                # Ctrl-C is a person's: no load balancer has to see it first.
                config = server.config
                lame_duck_s = config.lame_duck_s if signals.first is signal.SIGTERM else 0.0
                if lame_duck_s:
                    print_line(f"shutting down: requests are served for {lame_duck_s:g} s more")
                    server.turn_away()
                    await run_until(asyncio.create_task(asyncio.sleep(lame_duck_s)), signals.end)
                print_line(f"draining: running requests have {config.drain_timeout_s:g} s")
                draining = asyncio.create_task(server.drain(config.drain_timeout_s))
                await run_until(draining, signals.end)
        finally:
            await server.close()
            if pulse is not None:
                await pulse.close()
