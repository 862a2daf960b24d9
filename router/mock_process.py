"""Mock engines in one child process, for `serve --mockers N`: they must not share our loop."""

import re
import sys

import structlog

from ..runtime.child_process import ChildError, ChildProcess
from ..runtime.errors import ConfigError
from .config import ServeConfig

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_ENGINE = re.compile(r"engine \d+: (grpc://\S+) worker (\d+)")

log = structlog.get_logger(__name__)


class MockProcess:
    """The child, in our process group, from `start` until `stop` and never longer than us."""

    def __init__(self, config: ServeConfig, *, nats_url: str | None) -> None:
        command = [sys.executable, "-m", "dynamo_router", "mocker", *_flags(config)]
        if nats_url is not None:
            command += ["--nats", nats_url]
        self._child = ChildProcess(
            command,
            stop_timeout_s=STOP_TIMEOUT_S,
            join_stderr=False,
            on_unexpected_end=lambda code: log.error("the mock engines ended", exit_code=code),
        )
        self.urls: list[str] = []
        """of the engines, once started: grpc://HOST:PORT?id=WORKER_ID"""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def start(self) -> None:
        """Return once every engine listens; ConfigError, with its last line, if that fails."""
        try:
            await self._child.start(self._on_line, START_TIMEOUT_S)
        except ChildError as error:
            text = error.output[-1] if error.output else f"the process {error.reason}"
            raise ConfigError(f"the mock engines did not start: {text}", key="mockers") from None

    async def stop(self) -> None:
        """End the child, by force if it takes long. Idempotent."""
        await self._child.stop()

    def _on_line(self, line: str) -> bool:
        """Note an engine's address; whether all of them listen."""
        if match := _ENGINE.match(line):
            self.urls.append(f"{match[1]}?id={match[2]}")
        return line == "ready"


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
