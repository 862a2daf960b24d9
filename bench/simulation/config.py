"""Settings of a simulated replay: fleet, policies, targets. A section of ReplayConfig."""

from dataclasses import dataclass
from typing import Any

from ...router.config import KvRouterConfig, ServeConfig
from ...runtime.settings import bad_setting, option, resolve
from ...workers.mocker.config import (
    ENGINE_TYPES,
    PREEMPTION_MODES,
    EngineConfig,
    parse_speeds,
)

DEFAULT_COMPARE = "kv,round-robin"
DEFAULT_WORKERS = 8


def _option(default: Any, help: str, flag: str | None = None, **more: Any) -> Any:
    return option(default, f"Simulated: {help}", flag, **more)


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    """What to simulate. Raises ConfigError, naming the key, on a bad value."""

    compare: str | None = _option(
        None, f"policies, with commas; not given: {DEFAULT_COMPARE}, or the one of --mode."
    )
    seeds: int = _option(1, "run each policy with so many seeds.")
    engine: str = _option(
        "vllm",
        "profile of the engines' scheduler.",
        choices=ENGINE_TYPES,
        aliases=("--engine-type",),
    )
    block_size: int = _option(64, "tokens in a KV-cache block.")
    num_gpu_blocks: int = _option(16384, "KV-cache blocks of an engine.")
    max_num_seqs: int = _option(256, "most requests running at once on an engine.")
    max_num_batched_tokens: int = _option(8192, "tokens computed in one step of an engine.")
    worker_speeds: str = _option(
        "1",
        "how fast each engine is: numbers with commas, over and over if there are more engines.",
    )
    preemption_mode: str | None = _option(
        None,
        "who gives way when a cache is full: lifo, the youngest, or fifo, the oldest; not given: "
        "the profile's own.",
        choices=PREEMPTION_MODES,
    )
    dp_size: int = _option(
        1, "data-parallel ranks of an engine.", "--dp-size", aliases=("--data-parallel-size",)
    )
    startup_time_s: float = _option(
        0.0, "how long an engine takes to start.", "--startup-time-s", aliases=("--startup-time",)
    )
    planner_profile_data: str | None = _option(
        None, "NPZ file of measured step times; not given: polynomials."
    )
    event_delay_ms: float = _option(0.0, "how long a KV event is under way.")
    event_loss: float = _option(0.0, "share of KV event messages that get lost.")
    router_config: str | None = _option(
        None, "settings of the router, a file as for serve --config; its [router] table counts."
    )
    slo_ttft_ms: float = _option(1000.0, "TTFT that a good answer stays within.")
    slo_itl_ms: float = _option(50.0, "mean ITL that a good answer stays within.")
    plot: str | None = _option(None, "write plots into this folder.")

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise bad_setting("seeds", f"{self.seeds} must be at least 1")
        if not 0 <= self.event_delay_ms < float("inf"):
            raise bad_setting("event_delay_ms", f"{self.event_delay_ms} must be finite, at least 0")
        if not 0 <= self.event_loss <= 1:
            raise bad_setting("event_loss", f"{self.event_loss} must be from 0 to 1")
        for key in ("slo_ttft_ms", "slo_itl_ms"):
            if not getattr(self, key) > 0:
                raise bad_setting(key, f"{getattr(self, key)} must be greater than 0")
        parse_speeds(self.worker_speeds)
        self.engine_config()  # which checks the rest
        self.router()

    def router(self) -> KvRouterConfig:
        """The settings of the router under test, but for what a policy's name says."""
        if self.router_config is None:
            return KvRouterConfig()
        return resolve(ServeConfig, {}, environ={}, file=self.router_config).config.router

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            engine_type=self.engine,
            preemption_mode=self.preemption_mode,
            dp_size=self.dp_size,
            startup_time_s=self.startup_time_s,
            planner_profile_data=self.planner_profile_data,
            block_size=self.block_size,
            num_gpu_blocks=self.num_gpu_blocks,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
