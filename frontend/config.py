"""Settings of the OpenAI frontend, and of `serve` with it."""

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..process.setting_checks import require_finite
from ..process.settings import SHORTEST_S, bad_setting, is_finite, option
from ..runtime.kv_stores import BACKENDS
from ..server.config import ServeConfig
from ..server.mock_process import MockEnginesConfig
from ..workers.records import STATIC, ModelCard
from ..workers.worker_url import OPENAI, WorkerUrl, parse_worker
from .parsers import (
    NO_PARSER,
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    ModelParsers,
    exclude_each_other,
    parsers_of,
)

"""Packages without which no text is read."""
_STORES = ", ".join(BACKENDS)


@dataclass(frozen=True, kw_only=True)
class FrontendConfig:
    """How OpenAI clients are served. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Model and OpenAI API"

    http_frontend: int | None = option(
        None,
        "Port of OpenAI's HTTP API; 0 takes a free one. Not given: it is not served.",
        group="Listening",
        short=True,
    )
    model_path: str | None = option(
        None,
        "Folder with the model's tokenizer.json, tokenizer_config.json and chat template. Not "
        "given: a small tokenizer that comes along, for mock engines.",
        short=True,
    )
    default_max_tokens: int | None = option(
        None,
        "Most tokens of an answer whose request gives no max_tokens. Not given: what the prompt"
        " leaves of the context; 1024 where the engines do not report its length.",
    )
    keep_alive_s: float = option(
        15.0,
        "Seconds of silence until a stream gets a comment, so that proxies keep it open.",
    )

    token_cache_bytes: int = option(
        64 << 20,
        "Memory for token ids of pieces of long prompts, so that a turn of a conversation is"
        " tokenized once; 0: none are kept.",
    )
    reasoning_parser: str | None = option(
        None,
        f"How models write their reasoning: {', '.join(REASONING_PARSERS)}; {NO_PARSER}: it stays"
        " in the answer. Not given: the parser that the model's card names.",
        short=True,
    )
    tool_call_parser: str | None = option(
        None,
        f"How models write calls of tools: {', '.join(TOOL_CALL_PARSERS)}; {NO_PARSER}: they stay"
        " in the answer. Not given: the parser that the model's card names.",
        short=True,
    )

    def __post_init__(self) -> None:
        for key, known in (
            ("reasoning_parser", REASONING_PARSERS),
            ("tool_call_parser", TOOL_CALL_PARSERS),
        ):
            name = getattr(self, key)
            if name is not None and name not in (*known, NO_PARSER):
                raise bad_setting(key, f"{name!r} is none of {', '.join(known)}")
        named = (self.reasoning_parser, self.tool_call_parser)
        if exclude_each_other(*(None if name == NO_PARSER else name for name in named)):
            text = "gpt_oss and harmony are one form: no other parser goes with either"
            raise bad_setting("tool_call_parser", text)
        if self.http_frontend is not None and not 0 <= self.http_frontend <= 65535:
            raise bad_setting("http_frontend", "must be in 0..65535")
        if self.model_path is not None and not os.path.isdir(self.model_path):
            raise bad_setting("model_path", f"{self.model_path} is no folder")
        if self.default_max_tokens is not None and self.default_max_tokens < 1:
            raise bad_setting("default_max_tokens", "must be at least 1")
        if self.token_cache_bytes < 0:
            raise bad_setting("token_cache_bytes", "must be at least 0")
        if not (is_finite(self.keep_alive_s) and self.keep_alive_s >= SHORTEST_S):
            raise bad_setting("keep_alive_s", f"must be at least {SHORTEST_S:g}")

    def parsers(self, card: ModelCard | None = None) -> ModelParsers:
        """By what a model's answers are read: these settings, or else its card."""
        named = ("", "") if card is None else (card.reasoning_parser, card.tool_call_parser)
        return parsers_of(self.reasoning_parser, self.tool_call_parser, *named)


MOST_FALLBACKS = 8


@dataclass(frozen=True, kw_only=True)
class EnvoyConfig:
    """How Envoy is answered, which asks where requests go. ConfigError, naming the key, on a bad
    value."""

    GROUP: ClassVar[str] = "Envoy"

    ext_proc_port: int | None = option(
        None,
        "Port of Envoy's external processing (gRPC), which picks endpoints for requests that Envoy"
        " carries; 0 takes a free one. Not given: it is not served.",
        group="Listening",
    )
    grpc_health_port: int | None = option(
        None,
        "Port of grpc.health.v1 alone, never with TLS, beside external processing; 0 takes a free"
        " one.",
        group="Listening",
    )
    secure_serving: bool = option(
        True,
        "Serve external processing over TLS: with --tls-cert and --tls-key, else with a certificate"
        " that is made at the start and that nothing vouches for (needs the package cryptography).",
    )
    endpoint_port: int | None = option(
        None,
        "Port of OpenAI's API at the host of each worker that speaks something else, as those of a"
        " store do: that of a frontend beside it, which is given the worker by headers.",
    )
    fallbacks: int = option(
        2, "Endpoints that Envoy is given beside the best one, should that not be reached."
    )
    pick_timeout_s: float = option(
        5.0,
        "How long a pick may take, its time in the admission queue included; then 504. Envoy itself"
        " waits for ever.",
    )

    def __post_init__(self) -> None:
        for key in ("ext_proc_port", "grpc_health_port"):
            port = getattr(self, key)
            if port is not None and not 0 <= port <= 65535:
                raise bad_setting(key, "must be in 0..65535")
        if self.endpoint_port is not None and not 1 <= self.endpoint_port <= 65535:
            raise bad_setting("endpoint_port", "must be in 1..65535")
        if not 0 <= self.fallbacks <= MOST_FALLBACKS:
            raise bad_setting("fallbacks", f"must be in 0..{MOST_FALLBACKS}")
        require_finite(self, SHORTEST_S, "pick_timeout_s")
        if self.grpc_health_port is not None and self.ext_proc_port is None:
            raise bad_setting("grpc_health_port", "needs ext_proc_port")

    @property
    def is_served(self) -> bool:
        """Whether there is a listener for Envoy."""
        return self.ext_proc_port is not None

    def check_workers(self, config: ServeConfig) -> None:
        """ConfigError for workers to which Envoy could send no request."""
        if not self.is_served or self.endpoint_port is not None:
            return
        urls = (parse_worker(url) for url in config.workers)
        others = any(isinstance(url, WorkerUrl) and url.dialect != OPENAI for url in urls)
        if config.backend != STATIC or config.mock_engines.mockers or others:
            text = "is needed with ext_proc_port: Envoy calls OpenAI's HTTP, which workers of a"
            text = f"{text} store, mock engines and those at grpc:// do not speak"
            raise bad_setting("endpoint_port", text)


@dataclass(frozen=True, kw_only=True)
class ServeFrontendConfig(ServeConfig):
    """What `dynamo-router serve` runs: the router; a frontend, and a picker for Envoy, if their
    ports are given."""

    frontend: FrontendConfig = field(default_factory=FrontendConfig, metadata={"inline": True})
    envoy: EnvoyConfig = field(default_factory=EnvoyConfig, metadata={"inline": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.envoy.check_workers(self)


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(ServeFrontendConfig):
    """What `dynamo-router doctor` looks at: the settings of serve."""

    GROUP: ClassVar[str] = "Doctor"

    wait_s: float = option(
        8.0, "Seconds to wait for answers of workers and for their first KV events.", short=True
    )
    json: bool = option(False, "Print the findings as JSON.", short=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite(self, SHORTEST_S, "wait_s")


def as_in_serve(
    name: str, *default: Any, group: type[Any] = FrontendConfig, **metadata: Any
) -> Any:
    """The setting of FrontendConfig, or of another group, of this name; perhaps with a default, or
    other metadata, of its own."""
    setting = group.__dataclass_fields__[name]
    found = default[0] if default else setting.default
    return field(default=found, metadata={**setting.metadata, **metadata})


def not_served(default: Any) -> Any:
    """A setting of `serve` that this command has not: it keeps its default."""
    return field(default=default, init=False)


@dataclass(frozen=True, kw_only=True)
class ModelFrontendConfig(ServeConfig):
    """What `dynamo-router frontend` runs. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Model and OpenAI API"

    has_grpc = False
    http_port: int = option(
        8080, "Port of OpenAI's HTTP API; 0 takes a free one.", group="Listening", short=True
    )
    model_path: str | None = option(
        None,
        "Folder of the files that a card names, where they are not at their own path here. They"
        " must have the card's checksums.",
        short=True,
    )
    default_max_tokens: int | None = as_in_serve("default_max_tokens")
    keep_alive_s: float = as_in_serve("keep_alive_s")
    token_cache_bytes: int = as_in_serve("token_cache_bytes")
    reasoning_parser: str | None = as_in_serve("reasoning_parser")
    tool_call_parser: str | None = as_in_serve("tool_call_parser")
    envoy: EnvoyConfig = field(default_factory=EnvoyConfig, metadata={"inline": True})
    namespace: str = option(
        "dynamo",
        "Namespace whose models are served; dynamo: those of all namespaces.",
        group="Workers",
        short=True,
    )
    namespace_prefix: str | None = option(
        None,
        "Serve the models of this namespace and of those that go on from it with a hyphen, as"
        " rolling updates name them; goes before --namespace.",
        env=("DYN_NAMESPACE_PREFIX",),
        group="Workers",
    )
    port: int = not_served(8000)
    admin_host: str | None = option(
        None, "Address of the admin routes. Not given: that of OpenAI's API.", group="Listening"
    )
    admin_port: int | None = option(
        None,
        "HTTP port of the admin routes; 0 takes a free one. Not given: that of OpenAI's API.",
        group="Listening",
        short=True,
    )
    workers: tuple[str, ...] = not_served(())
    prefill_workers: tuple[str, ...] = not_served(())
    prefill_component: str | None = not_served(None)
    dns_refresh_s: float = not_served(10.0)
    mock_engines: MockEnginesConfig = not_served(MockEnginesConfig())
    component: str = not_served("backend")
    endpoint: str = not_served("generate")
    model_id: str | None = not_served(None)
    index_snapshot: str | None = not_served(None)
    index_snapshot_interval_s: float = not_served(60.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.frontend
        if self.backend == STATIC:
            text = "models are found in a store: give --discovery, one of"
            raise bad_setting("discovery", f"{text} {_STORES}")
        self.envoy.check_workers(self)

    @property
    def frontend(self) -> FrontendConfig:
        """How OpenAI clients are served."""
        return FrontendConfig(
            http_frontend=self.http_port,
            model_path=self.model_path,
            default_max_tokens=self.default_max_tokens,
            keep_alive_s=self.keep_alive_s,
            token_cache_bytes=self.token_cache_bytes,
            reasoning_parser=self.reasoning_parser,
            tool_call_parser=self.tool_call_parser,
        )
