"""Mock engines in one child process, for `serve --mockers N`: they must not share our loop."""

import asyncio
import contextlib
import re
import sys
from asyncio.subprocess import PIPE, Process

import structlog

from ..runtime.child_process import tethered
from ..runtime.errors import ConfigError
from .config import ServeConfig

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_ENGINE = re.compile(r"engine \d+: (grpc://\S+) worker (\d+)")

log = structlog.get_logger(__name__)


class MockProcess:
    """The child, in our process group, from `start` until `stop` and never longer than us."""

    def __init__(self, config: ServeConfig, *, nats_url: str | None) -> None:
        self._command = [sys.executable, "-m", "dynamo_router", "mocker", *_flags(config)]
        if nats_url is not None:
            self._command += ["--nats", nats_url]
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self.urls: list[str] = []
        """of the engines, once started: grpc://HOST:PORT?id=WORKER_ID"""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Return once every engine listens; ConfigError, with the child's words, if that fails."""
        self._process = await asyncio.create_subprocess_exec(
            *tethered(self._command), stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=None
        )
        said: list[str] = []
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while "ready" not in said:
                    line = await self._read_line()
                    if line is None:
                        text = said[-1] if said else "see above"
                        raise ConfigError(f"the mock engines did not start: {text}", key="mockers")
                    said.append(line)
        except TimeoutError:
            await self.stop()
            raise ConfigError("the mock engines did not start in time", key="mockers") from None
        except BaseException:
            await self.stop()
            raise
        found = [match for line in said if (match := _ENGINE.match(line))]
        self.urls = [f"{match[1]}?id={match[2]}" for match in found]
        self._reader = asyncio.create_task(self._watch(), name="mock-engines")

    async def stop(self) -> None:
        """End the child: politely, then not. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader

    async def _read_line(self) -> str | None:
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        return line.decode(errors="replace").rstrip() if line else None

    async def _watch(self) -> None:
        """Read what it says to the end: a full pipe would stop it."""
        process = self._process
        assert process is not None and process.stdout is not None
        while await process.stdout.readline():
            pass
        if self._process is not None:  # nobody asked it to end
            log.error("the mock engines ended", exit_code=await process.wait())


def _flags(config: ServeConfig) -> list[str]:
    flags = {
        "--workers": config.mockers,
        "--host": "127.0.0.1",  # they are ours alone
        "--port": config.mocker_port,
        "--namespace": config.namespace,
        "--component": config.component,
        "--endpoint": config.endpoint,
        "--speedup-ratio": config.speedup_ratio,
        "--block-size": config.router.block_size,
        "--num-gpu-blocks": config.num_gpu_blocks,
        "--max-num-seqs": config.max_num_seqs,
        "--max-num-batched-tokens": config.max_num_batched_tokens,
    }
    if config.model_id is not None:
        flags["--model-id"] = config.model_id
    return [part for flag, value in flags.items() for part in (flag, str(value))]
