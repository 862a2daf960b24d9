"""What a simulation is made of: the load, and the settings of engines, events and router."""

from dataclasses import dataclass, field, fields, replace

from ...engines.mocker import (
    ENGINE_TYPES,
    PREEMPTION_MODES,
    EngineConfig,
    TierConfig,
    parse_speeds,
)
from ...process.setting_checks import (
    require_at_least,
    require_finite,
    require_positive,
    require_share,
)
from ...process.settings import bad_setting, option, resolve
from ...router.config import KvRouterConfig
from ...router.disagg import DisaggConfig
from ...server.config import ServeConfig
from ..results import ObjectiveConfig
from ..traces import check_trace_block_size
from .capacity import CapacityConfig
from .handoffs import RoleConfig
from .replicas import ReplicaConfig

DEFAULT_COMPARE = "kv,round-robin"
DEFAULT_WORKERS = 8


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent: a trace, or its beginning, from which seed on. ConfigError on a bad value."""

    trace: str
    requests: int | None = None
    arrival_speedup: float = 1.0
    max_output: int | None = None
    trace_block_size: int | None = None  # as a record says, else 512
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 1, "requests", "max_output")
        require_positive(self, "arrival_speedup")
        check_trace_block_size(self.trace_block_size)

    @classmethod
    def of(cls, settings: object) -> "Load":
        """The load among a command's settings, which have it under the same names."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    """Engines, events, router and goals. Raises ConfigError, naming the key, on a bad value."""

    compare: str | None = option(
        None, f"Policies to simulate, with commas; not given: {DEFAULT_COMPARE}."
    )
    seeds: int = option(1, "Run each policy with so many seeds.")
    engine: str = option(
        "vllm",
        "Profile of the engines' scheduler.",
        "--engine",
        "--engine-type",
        choices=ENGINE_TYPES,
    )
    block_size: int = option(64, "Tokens in a KV-cache block.")
    num_gpu_blocks: int = option(16384, "KV-cache blocks of an engine.")
    max_num_seqs: int = option(256, "Most requests running at once on an engine.")
    max_num_batched_tokens: int = option(8192, "Tokens computed in one step of an engine.")
    worker_speeds: str = option(
        "1",
        "How fast each engine is: numbers with commas, over and over if there are more engines.",
    )
    preemption_mode: str | None = option(
        None,
        "Who gives way when a cache is full: lifo, the youngest, or fifo, the oldest; not given: "
        "the profile's own.",
        choices=PREEMPTION_MODES,
    )
    dp_size: int = option(
        1, "Data-parallel ranks of an engine.", "--dp-size", "--data-parallel-size"
    )
    startup_time_s: float = option(
        0.0, "How long an engine takes to start.", "--startup-time-s", "--startup-time"
    )
    planner_profile_data: str | None = option(
        None, "NPZ file of measured step times; not given: polynomials."
    )
    decode_scale_tokens: int | None = option(
        None,
        "Tokens in use at which the built-in polynomial for decoding is slowest; not given: as many"
        " as the cache holds, so that a larger cache makes decoding faster.",
    )
    attention_us_per_ktoken2: float = option(
        0.0,
        "Microseconds that a step takes longer for each thousand prompt tokens and thousand tokens"
        " of context that they attend to; about 500 for a dense 8B model.",
    )
    tiers: TierConfig = field(default_factory=TierConfig, metadata={"inline": True})
    kv_events: bool = option(
        True, "Engines tell of their caches. Off: the router predicts them from its decisions."
    )
    engine_facts: bool = option(
        True, "The router is told how many blocks and tokens a step an engine has."
    )
    session_hints: bool = option(
        False,
        "Each request tells its engine how many of its prompt's tokens a later one begins with, as"
        " the trace has it; engines evict the rest first.",
    )
    event_delay_ms: float = option(
        0.0, "How long a KV event is under way.", "--event-delay-ms", "--event-delay"
    )
    event_loss: float = option(0.0, "Share of KV event messages that get lost.")
    router_config: str | None = option(
        None, "Settings of the router, a file as for serve --config; its [router] table counts."
    )
    objectives: ObjectiveConfig = field(default_factory=ObjectiveConfig, metadata={"inline": True})
    search: CapacityConfig = field(default_factory=CapacityConfig, metadata={"inline": True})
    replicas: ReplicaConfig = field(default_factory=ReplicaConfig, metadata={"inline": True})
    roles: RoleConfig = field(default_factory=RoleConfig, metadata={"inline": True})
    disagg: DisaggConfig = field(default_factory=DisaggConfig, metadata={"inline": True})
    plot: str | None = option(None, "Write plots into this folder.")

    def __post_init__(self) -> None:
        require_at_least(self, 1, "seeds")
        require_finite(self, 0, "event_delay_ms")
        require_share(self, "event_loss")
        parse_speeds(self.worker_speeds)
        self.engine_config()  # which checks the rest
        self.router()
        self._check_roles()

    def _check_roles(self) -> None:
        if not self.roles.engines:
            if self.disagg != DisaggConfig():
                raise bad_setting("disagg", "it needs --prefill-workers and --decode-workers")
            return
        for key, value, needed in (
            ("engine", self.engine, "vllm"),
            ("dp_size", self.dp_size, 1),
            ("event_loss", self.event_loss, 0.0),
            ("routers", self.replicas.routers, 1),
        ):
            if value != needed:
                raise bad_setting(key, f"must be {needed} with prefill and decode workers")

    def router(self) -> KvRouterConfig:
        """The settings of the router under test, but for what a policy's name says."""
        config = KvRouterConfig()
        if self.router_config is not None:
            config = resolve(ServeConfig, {}, environ={}, file=self.router_config).config.router
        shares = self.replicas.routers > 1 and self.replicas.replica_sync
        config = replace(config, router_replica_sync=shares)
        return config if self.kv_events else replace(config, use_kv_events=False)

    def engine_config(self) -> EngineConfig:
        """The settings of each engine."""
        return EngineConfig(
            engine_type=self.engine,
            preemption_mode=self.preemption_mode,
            dp_size=self.dp_size,
            startup_time_s=self.startup_time_s,
            planner_profile_data=self.planner_profile_data,
            decode_scale_tokens=self.decode_scale_tokens,
            attention_us_per_ktoken2=self.attention_us_per_ktoken2,
            block_size=self.block_size,
            num_gpu_blocks=self.num_gpu_blocks,
            max_model_len=0,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            tiers=self.tiers,
        )
