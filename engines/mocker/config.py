"""Settings of a mock engine (EngineConfig) and of the process that serves some (MockerConfig)."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from ...process.settings import bad_setting, option
from ..prefill_queue import PrefillQueueConfig
from ..serving import ServingConfig, require, require_choice, require_positive
from ..transfer import TransferConfig
from .tiers import TierConfig
from .timing import StepTiming, load_timing

MAX_TOKEN_ID = 2**32
EVEN_SPEEDS = (1.0,)
ENGINE_TYPES = ("vllm", "classic")
DISAGGREGATION_MODES = ("agg", "prefill", "decode")
AGGREGATED = "aggregated"  # Dynamo's word for agg
PREEMPTION_MODES = ("lifo", "fifo")
_CLASSIC_WATERMARK = 0.01
_USUAL_END = 2  # the end token of most models
_MOST_RANKS = 4096


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One engine's cache, scheduler and model. ConfigError, naming the key, if out of range."""

    GROUP: ClassVar[str] = "Mock engines"

    engine_type: str = option(
        "vllm",
        "Profile of the scheduler: vllm (one running queue, one token budget) or classic (waiting, "
        "prefill and decode queues).",
        "--engine-type",
        "--engine",
        choices=ENGINE_TYPES,
        short=True,
    )
    block_size: int = option(64, "Tokens in a KV-cache block.", short=True)
    num_gpu_blocks: int = option(
        16384,
        "Blocks in the KV cache.",
        "--num-gpu-blocks",
        "--num-gpu-blocks-override",
        short=True,
    )
    max_num_seqs: int = option(256, "Most requests running at once.", short=True)
    max_num_batched_tokens: int = option(
        8192, "Tokens computed in one step, all requests together.", short=True
    )
    enable_chunked_prefill: bool = option(
        True, "Spread a long prompt over several steps.", short=True
    )
    watermark: float | None = option(
        None,
        "Share of the cache that is kept free when a waiting request is admitted; not given: 0, "
        f"and {_CLASSIC_WATERMARK} for classic.",
    )
    preemption_mode: str | None = option(
        None,
        "Who gives way when the cache is full, the youngest (lifo) or the oldest (fifo); not "
        "given: lifo, and fifo for classic.",
        choices=PREEMPTION_MODES,
    )
    dp_size: int = option(
        1,
        "Data-parallel ranks of an engine, each with a cache and a scheduler of its own.",
        "--dp-size",
        "--data-parallel-size",
        short=True,
    )
    startup_time_s: float = option(
        0.0, "How long an engine takes to start.", "--startup-time-s", "--startup-time", short=True
    )
    planner_profile_data: str | None = option(
        None, "NPZ file of measured step times; not given: polynomials.", short=True
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
    max_model_len: int = option(
        32768,
        "Longest prompt and output together, in tokens; 0: what the cache holds.",
        short=True,
    )
    max_waiting: int = option(65536, "Most waiting requests; more are turned away.")
    vocab_size: int = option(32000, "Token ids are below this.", short=True)
    eos_token_id: tuple[int, ...] = option(
        (),
        "Token ids that end an answer, and are never generated. Not given: those of the model in"
        " --model-path; else 2.",
    )
    decode_speedup_ratio: float = option(1.0, "How much faster decoding is than the timing model.")
    tiers: TierConfig = field(default_factory=TierConfig, metadata={"inline": True})

    def __post_init__(self) -> None:
        for key in ("block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens"):
            require(key, getattr(self, key) >= 1, "must be at least 1")
        for key in ("max_waiting", "dp_size"):
            require(key, getattr(self, key) >= 1, "must be at least 1")
        require("num_gpu_blocks", self.num_gpu_blocks < 2**31, "must be below 2**31")
        require("dp_size", self.dp_size <= _MOST_RANKS, f"must be at most {_MOST_RANKS}")
        require_choice("engine_type", self.engine_type, ENGINE_TYPES)
        if self.preemption_mode is not None:
            require_choice("preemption_mode", self.preemption_mode, PREEMPTION_MODES)
        if self.watermark is not None:
            require("watermark", 0 <= self.watermark < 1, "must be in [0, 1)")
        require("startup_time_s", 0 <= self.startup_time_s < math.inf, "must be 0 or more")
        require("vocab_size", 2 <= self.vocab_size <= MAX_TOKEN_ID, "must be in 2..2**32")
        require("eos_token_id", min(self.eos_token_id, default=0) >= 0, "must not be negative")
        scale = self.decode_scale_tokens
        require("decode_scale_tokens", scale is None or scale >= 1, "must be at least 1")
        require_positive("decode_speedup_ratio", self.decode_speedup_ratio)
        attention = self.attention_us_per_ktoken2
        require("attention_us_per_ktoken2", 0 <= attention < math.inf, "must be 0 or more")
        if self.max_model_len:
            require("max_model_len", self.max_model_len >= 2, "must be at least 2")
        require("num_gpu_blocks", self.max_seq_len >= 2, "the cache must hold 2 tokens")
        _ = self.timing  # which reads the profile

    @property
    def end_tokens(self) -> frozenset[int]:
        """Token ids that are never generated."""
        return frozenset(self.eos_token_id or (_USUAL_END,))

    @cached_property
    def timing(self) -> StepTiming:
        """The model of step times: the profile's, or the built-in polynomials."""
        return load_timing(
            self.planner_profile_data,
            self.decode_scale_tokens or self.capacity_tokens,
            self.decode_speedup_ratio,
            self.attention_us_per_ktoken2,
        )

    @property
    def preempts(self) -> str:
        """The preemption mode, given or not."""
        return self.preemption_mode or ("fifo" if self.engine_type == "classic" else "lifo")

    @property
    def admission_blocks(self) -> int:
        """Most blocks in use after a waiting request is admitted beside others."""
        free = self.watermark
        if free is None:
            free = _CLASSIC_WATERMARK if self.engine_type == "classic" else 0.0
        return int((1 - free) * self.num_gpu_blocks)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the whole cache holds."""
        return self.num_gpu_blocks * self.block_size

    @property
    def max_seq_len(self) -> int:
        """Longest sequence, prompt and output together, that this engine can ever finish."""
        return self._longest[0]

    @property
    def length_key(self) -> str:
        """The setting that `max_seq_len` comes from."""
        return self._longest[1]

    @property
    def _longest(self) -> tuple[int, str]:
        limits = [(self.capacity_tokens, "num_gpu_blocks")]
        if not self.enable_chunked_prefill:
            limits.append((self.max_num_batched_tokens, "max_num_batched_tokens"))
        if self.max_model_len:
            limits.append((self.max_model_len, "max_model_len"))
        return min(limits)

    @property
    def max_input_len(self) -> int:
        """Longest prompt: it leaves room for one token of output."""
        return self.max_seq_len - 1


@dataclass(frozen=True, kw_only=True)
class MockerConfig(ServingConfig):
    """What `dynamo-router mocker` runs. ConfigError, naming the key, if out of range."""

    GROUP: ClassVar[str] = "Mock engines"

    workers: int = option(1, "How many engines; engine i listens on PORT+i.", short=True)
    port: int = option(
        9001, "gRPC port of the first engine; 0 takes free ones.", group="Listening", short=True
    )
    advertise_host: str | None = option(
        None,
        "Host under which others reach the engines; not given: --host, or our host name.",
        group="Listening",
        short=True,
    )
    worker_id: int | None = option(
        None,
        "Worker id of the first engine, the next ones follow; not given: made of the address.",
        group="Registration",
        short=True,
    )
    model_id: str = option("mock-model", "Model name to report.", group="Registration", short=True)
    model_path: str | None = option(
        None,
        "With --discovery: folder of the model's tokenizer, for frontends. Not given: one that"
        " comes along, if --vocab-size is at most 4096.",
        group="Registration",
        short=True,
    )
    disaggregation_mode: str = option(
        "agg",
        "What the engines compute: whole requests (agg), prompts for decode workers (prefill), or"
        " what follows them (decode).",
        choices=(*DISAGGREGATION_MODES, AGGREGATED),
        short=True,
    )
    transfer_gbps: float = option(
        25.0, "Gigabytes a second at which a decode engine takes the prompt that it is handed."
    )
    transfer_latency_ms: float = option(2.0, "And how long that takes beside.")
    moves: TransferConfig = field(default_factory=TransferConfig, metadata={"inline": True})
    queue: PrefillQueueConfig = field(default_factory=PrefillQueueConfig, metadata={"inline": True})
    speedup_ratio: float = option(
        1.0, "How much faster than real time the engines run.", short=True
    )
    worker_speeds: str = option(
        "1",
        "How fast each engine is beside the others: numbers with commas, over and over if there "
        "are more engines.",
    )
    fault_port: int | None = option(
        None,
        "HTTP port, on --host, through which engines are made to fail; 0 takes a free one. Not "
        "given: none.",
        short=True,
    )
    metrics_port: int | None = option(
        None,
        "HTTP port, on --host, of /metrics: what --transfer moves and checks; 0 takes a free one."
        " Not given: none.",
    )
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        require("workers", self.workers >= 1, "must be at least 1")
        last_port = self.port + (self.workers - 1 if self.port else 0)
        if self.discovery.backend(given_workers=True) == "kubernetes":
            text = "a pod is one instance: at most 1 with --discovery kubernetes"
            require("workers", self.workers == 1, text)
        require("port", self.port >= 0 and last_port <= 65535, "a port is outside 0..65535")
        super().__post_init__()
        if self.fault_port is not None:
            require("fault_port", 0 <= self.fault_port <= 65535, "must be in 0..65535")
        if self.metrics_port is not None:
            require("metrics_port", 0 <= self.metrics_port <= 65535, "must be in 0..65535")
        if self.worker_id is not None:
            last_id = self.worker_id + self.workers - 1
            require("worker_id", last_id < 2**64, "must fit 64 bits")
        if self.disaggregation_mode == AGGREGATED:
            object.__setattr__(self, "disaggregation_mode", "agg")
        require_positive("transfer_gbps", self.transfer_gbps)
        latency = self.transfer_latency_ms
        require("transfer_latency_ms", 0 <= latency < math.inf, "must be 0 or more")
        if self.moves.transfer is not None:
            text = f"{self.engine.engine_type} takes no prompts whose blocks are moved (transfer)"
            require("engine_type", self.engine.engine_type == "vllm", text)
        require_choice("disaggregation_mode", self.disaggregation_mode, DISAGGREGATION_MODES)
        if self.queue.prefill_queue:
            text = "a prefill queue is for engines of --disaggregation-mode prefill or decode"
            require("prefill_queue", self.disaggregation_mode != "agg", text)
            text = "a prefill queue needs a way by which blocks move (--transfer)"
            require("prefill_queue", self.moves.transfer is not None, text)
        require_positive("speedup_ratio", self.speedup_ratio)
        parse_speeds(self.worker_speeds)

    def transfer_s(self, tokens: int) -> float:
        """Seconds in which these tokens of a prompt come from a prefill engine."""
        size = tokens * self.engine.tiers.kv_bytes_per_token
        return self.transfer_latency_ms / 1e3 + size / (self.transfer_gbps * 1e9)


def parse_speeds(text: str) -> tuple[float, ...]:
    """The speeds in a list with commas. ConfigError for `worker_speeds` if one is no speed."""
    speeds = []
    for word in text.split(","):
        try:
            speed = float(word)
        except ValueError:
            raise bad_setting("worker_speeds", f"{word.strip()!r} is not a number") from None
        require_positive("worker_speeds", speed)
        speeds.append(speed)
    return tuple(speeds)
