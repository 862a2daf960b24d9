"""Settings of the benchmarks of servers: `--help` reads them, and loads no client and no server."""

from dataclasses import dataclass

from ...engines.transfer import TransferConfig
from ...process.setting_checks import require_at_least, require_positive
from ...process.settings import bad_setting, option

STREAM_WAYS = ("zmq", "grpc", "nats")
"""How events of engines come."""
API_NAMES = ("chat", "messages", "responses")


@dataclass(frozen=True, kw_only=True)
class DispatcherBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    requests: int = option(200, "Requests per part and round.")
    rounds: int = option(15, "Rounds, after one to warm up; medians of them are reported.")
    workers: int = option(8, "Engines.")
    tokens: int = option(1000, "Token ids of a prompt.")
    output_tokens: int = option(32, "Tokens of a long answer; a short one has one.")
    core: int | None = option(None, "Pin this process to a CPU core (steadier).")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "requests", "rounds", "workers", "tokens")
        require_at_least(self, 2, "output_tokens")


@dataclass(frozen=True, kw_only=True)
class StreamsBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    engines: int = option(8, "Engines, each with a socket of its own.")
    way: str = option(
        "zmq", "How: zmq, as vLLM does, grpc, by SubscribeKvEvents, or nats, by the event plane."
    )
    block_size: int = option(16, "Tokens of a block.")
    run_blocks: int = option(128, "Blocks that a message stores; as many go.")
    blocks_per_s: float = option(0.0, "Blocks stored a second, by all; 0: as many as are taken.")
    messages: int = option(2000, "Messages of each engine in a round.")
    rounds: int = option(3, "Rounds; medians of them are reported.")
    seed: int = option(7, "Which prompts.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        if self.way not in STREAM_WAYS:
            raise bad_setting("way", f"{self.way!r} is none of {', '.join(STREAM_WAYS)}")
        require_at_least(self, 1, "engines", "block_size", "run_blocks", "messages", "rounds")
        require_at_least(self, 0, "seed", "blocks_per_s")


@dataclass(frozen=True, kw_only=True)
class PathBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    requests: int = option(200, "Requests per way, load and round; with --long, chats.")
    rounds: int = option(7, "Rounds, after one to warm up; medians of them are reported.")
    concurrency: tuple[int, ...] = option((1, 16, 64), "Requests at a time; may be repeated.")
    output_tokens: tuple[int, ...] = option((1, 32), "Tokens of an answer; may be repeated.")
    workers: int = option(4, "Mock engines.")
    tokens: int = option(1000, "Token ids of a prompt.")
    dynamo: str | None = option(
        None,
        "A Python that has ai-dynamo; not given: Dynamo is left out.",
        env=("DYNAMO_PEER",),
    )
    envoy: str | None = option(
        None,
        "Path of an Envoy, which copies bytes beside the bare proxy; not given: it is left out.",
    )
    smg: str | None = option(
        None,
        "Path of SMG's program. It takes no token ids: it gets chats of text, and so does our"
        " OpenAI door beside it, as frontend-text. Not given: both are left out.",
        env=("SMG",),
    )
    chars: int = option(1100, "Characters of such a chat.")
    pin: bool = option(
        False, "Give what is measured the first core alone, and client and engines another."
    )
    record: bool = option(
        False,
        "What a record costs: the listeners of two routers, one of which records; no peers.",
    )
    long: bool = option(
        False,
        "Chats that grow, through the OpenAI doors, instead: a long first turn, a short next.",
    )
    long_tokens: tuple[int, ...] = option(
        (1_000, 10_000, 100_000), "With --long: tokens of a chat before its next turn; repeatable."
    )
    turn_tokens: int = option(1_000, "With --long: tokens of the next turn.")
    tools: int = option(
        0,
        "With --long: tools of an agent, whose chat is measured beside the last of the others; the"
        " model's template has to show how it calls them. 0: there is none.",
    )
    api: str = option(
        "chat",
        "With --long: the API of the chats, OpenAI's chat or responses (as Codex sends them) or"
        " Anthropic's messages (as Claude Code does).",
        choices=API_NAMES,
    )
    model_path: str | None = option(
        None, "Folder of the tokenizer of chats; not given: the small one of the mock engines."
    )
    start_timeout_s: float = option(
        60.0, "Wait this long for each server and its engines.", flag="--start-timeout"
    )
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "requests", "rounds", "workers", "tokens", "chars", "turn_tokens")
        require_at_least(self, 1, "concurrency", "output_tokens", "long_tokens")
        require_at_least(self, 0, "tools")
        require_positive(self, "start_timeout_s")
        if self.api not in API_NAMES or (self.api != "chat" and not self.long):
            raise bad_setting("api", f"must be one of {', '.join(API_NAMES)}, and needs long")
        if self.record and (self.long or self.dynamo or self.envoy or self.smg):
            raise bad_setting("record", "goes without peers and without long")


@dataclass(frozen=True, kw_only=True)
class RestartBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    engines: int = option(8, "Engines that publish.")
    messages: int = option(1_000_000, "Messages of all, which stay in the stream: a block each.")
    block_size: int = option(16, "Tokens of a block.")
    kill: bool = option(False, "Kill the router instead of stopping it: what it saved is older.")
    rounds: int = option(5, "Starts; medians of them are reported.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "engines", "block_size", "rounds")
        if self.messages < self.engines:
            raise bad_setting("messages", f"{self.messages} is less than one of each engine")


@dataclass(frozen=True, kw_only=True)
class SelectionBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    requests: int = option(1000, "Requests per way, load and round.")
    rounds: int = option(7, "Rounds, after one to warm up; medians of them are reported.")
    concurrency: tuple[int, ...] = option((1, 16), "Requests at a time; may be repeated.")
    workers: int = option(32, "Workers to choose among.")
    tokens: int = option(1000, "Token ids of a prompt.")
    dynamo: str | None = option(
        None,
        "A Python that has ai-dynamo; not given: Dynamo is left out. Its service listens on all"
        " addresses of the machine.",
        env=("DYNAMO_PEER",),
    )
    start_timeout_s: float = option(
        60.0, "Wait this long for Dynamo's service.", flag="--start-timeout"
    )
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "requests", "rounds", "workers", "tokens", "concurrency")
        require_positive(self, "start_timeout_s")


@dataclass(frozen=True, kw_only=True)
class HostileBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    kind: tuple[str, ...] = option(
        (), "Kind of peer; may be repeated. Not given: all; an unknown one is refused with a list."
    )
    rounds: int = option(3, "Rounds of three phases: quiet, hostile, control.")
    seconds: float = option(4.0, "How long a phase lasts.")
    rate: float = option(50.0, "Requests a second of the client that behaves.")
    workers: int = option(3, "Engines that are well.")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "rounds", "workers")
        require_positive(self, "seconds", "rate")


@dataclass(frozen=True, kw_only=True)
class QueueBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    blocks: int = option(64, "Blocks of a prompt, of 16 tokens each.")
    block_bytes: int = option(16384, "Bytes of a block.")
    prompts: int = option(50, "Prompts in a round, one after the other.")
    rounds: int = option(9, "Rounds, after one to warm up; medians of them are reported.")
    core: int | None = option(None, "Pin this process to a CPU core (steadier).")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        require_at_least(self, 1, "blocks", "prompts", "rounds")
        _ = TransferConfig(transfer_block_bytes=self.block_bytes).layout
