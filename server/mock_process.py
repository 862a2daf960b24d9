"""Mock engines in one child process, for `serve --mockers N`: they must not share our loop."""

import re
import sys
from dataclasses import dataclass, field, fields
from typing import ClassVar

import structlog

from ..base.errors import ConfigError
from ..engines.mocker import TierConfig
from ..process.child_process import ChildError, ChildProcess
from ..process.setting_checks import require_at_least
from ..process.settings import bad_setting, option, options_of, values_of
from ..transport.security import NatsAuthConfig

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_ENGINE = re.compile(r"engine \d+: (grpc://\S+) worker (\d+)")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class MockEnginesConfig:
    """The mock engines of `serve`. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Mock engines"

    mockers: int = option(
        0, "Start this many mock engines and route to them.", short=True, packed=None
    )
    mocker_port: int = option(0, "Port of the first of them; 0 takes free ones.")
    speedup_ratio: float = option(1.0, "How much faster than real time the mock engines run.")
    num_gpu_blocks: int = option(16384, "KV-cache blocks of each mock engine.")
    max_model_len: int = option(
        32768,
        "Longest prompt and output together of each mock engine, in tokens; 0: what its cache"
        " holds.",
    )
    max_num_seqs: int = option(256, "Most running requests of each mock engine.")
    max_num_batched_tokens: int = option(8192, "Token budget of a mock engine's step.")
    vocab_size: int | None = option(
        None,
        "Token ids of mock engines are below this; not given: the frontend's, else 32000.",
    )
    tiers: TierConfig = field(default_factory=TierConfig, metadata={"inline": True})

    def __post_init__(self) -> None:
        if not 0 <= self.mocker_port <= 65535:
            raise bad_setting("mocker_port", "must be in 0..65535")
        require_at_least(self, 0, "mockers")
        require_at_least(self, 1, "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens")
        require_at_least(self, 2, "vocab_size")
        require_at_least(self, 0, "max_model_len")
        if not self.speedup_ratio > 0:
            raise bad_setting("speedup_ratio", "must be greater than 0")


class MockProcess:
    """The child, in a session of its own, from `start` until `stop` and never longer than us."""

    def __init__(
        self,
        config: MockEnginesConfig,
        *,
        block_size: int,
        namespace: str,
        component: str,
        endpoint: str,
        model_id: str | None,
        nats_url: str | None,
        nats_auth: NatsAuthConfig,
        vocab_size: int | None = None,
    ) -> None:
        """`vocab_size` counts where the configuration gives none."""
        tiers = values_of(config.tiers)
        flags = {
            "--workers": config.mockers,
            "--host": "127.0.0.1",  # they are ours alone
            "--port": config.mocker_port,
            "--namespace": namespace,
            "--component": component,
            "--endpoint": endpoint,
            "--speedup-ratio": config.speedup_ratio,
            "--block-size": block_size,
            "--num-gpu-blocks": config.num_gpu_blocks,
            "--max-model-len": config.max_model_len,
            "--max-num-seqs": config.max_num_seqs,
            "--max-num-batched-tokens": config.max_num_batched_tokens,
            "--model-id": model_id,
            **{spec.flags[0]: tiers[spec.key] for spec in options_of(TierConfig)},
            "--event-plane": "nats",
            "--discovery": "static",  # whatever the environment says: they are known already
            "--vocab-size": config.vocab_size or vocab_size,
        }
        command = [sys.executable, "-m", "dynamo_router", "mocker"]
        for flag, value in flags.items():
            if isinstance(value, bool):
                command.append(flag if value else flag.replace("--", "--no-", 1))
            elif value is not None:
                command += [flag, str(value)]
        env = {}
        if nats_url is not None:
            env["DYNAMO_ROUTER_MOCKER_NATS"] = nats_url  # flags can be read in the process list
            command += _nats_flags(nats_auth)
        self._child = ChildProcess(
            command,
            env=env,
            stop_timeout_s=STOP_TIMEOUT_S,
            join_stderr=False,
            own_session=True,  # Ctrl-C in the terminal is for us: requests that run need engines
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


def _nats_flags(auth: NatsAuthConfig) -> list[str]:
    named = ((f"--nats-{field.name}", getattr(auth, field.name)) for field in fields(auth))
    return [word for flag, path in named if path for word in (flag.replace("_", "-"), path)]
