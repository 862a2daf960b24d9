"""ServingConfig: how an engine is served and found, whichever engine it is."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from ...base.urls import DEFAULT_NATS_URL, split_nats_url
from ...process.settings import bad_setting, option
from ...runtime.components import GENERATIONS, Generation
from ...runtime.kv_stores import LEASE_TTL_S
from ...transport.security import NatsAuthConfig, ServerTlsConfig
from ...workers.records import DiscoveryConfig, EventPlaneConfig

DIALECTS = ("trtllm", "dynamo")


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """ConfigError, naming the key, if a value is out of range."""

    GROUP: ClassVar[str] = "Serving"

    host: str = option("127.0.0.1", "Address to listen on.", group="Listening", short=True)
    port: int = option(9001, "gRPC port; 0 takes a free one.", group="Listening", short=True)
    advertise_host: str | None = option(
        None,
        "Host under which others reach the engine; not given: --host, or our host name.",
        group="Listening",
        short=True,
    )
    worker_id: int | None = option(
        None, "Worker id; not given: made of the address.", group="Registration", short=True
    )
    nats: str | None = option(
        None,
        url=True,
        help=f"NATS server for KV events. Not given: {DEFAULT_NATS_URL} if one answers there, "
        "else no events are published.",
        group="KV events",
        short=True,
    )
    nats_auth: NatsAuthConfig = field(default_factory=NatsAuthConfig)
    durable_kv_events: bool = option(
        False,
        "Have NATS keep the KV events in a stream (JetStream), for routers that restart.",
        group="KV events",
    )
    tls: ServerTlsConfig = field(default_factory=ServerTlsConfig)
    namespace: str = option(
        "dynamo", "Namespace of the event subject.", group="KV events", short=True
    )
    component: str = option("backend", "Component of the event subject.", group="KV events")
    endpoint: str = option("generate", "Endpoint of the event subject.", group="KV events")
    heartbeat_s: float = option(
        5.0,
        "Seconds, about, between heartbeats, which carry the id of the last KV event; 0: none.",
        group="KV events",
    )
    kv_stream: bool = option(
        True,
        "Send KV events to gRPC subscribers (SubscribeKvEvents); off: UNIMPLEMENTED.",
        group="KV events",
    )
    model_id: str = option(
        "", "Model name to report; not given: that of the model.", group="Registration", short=True
    )
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig, metadata={"inline": True})
    plane: EventPlaneConfig = field(default_factory=EventPlaneConfig, metadata={"inline": True})
    dialect: str = option(
        "trtllm",
        "With --discovery: as what the engines register, to be called over gRPC (trtllm) or as"
        " Dynamo's workers are (dynamo).",
        choices=DIALECTS,
        group="Registration",
        short=True,
    )
    key_generation: str = option(
        "today",
        "With --discovery: how the keys are written, as Dynamo 1.6.1 does (today) or as its first"
        " generation does (seed): instances below /services/, names of cards with dots.",
        choices=GENERATIONS,
        group="Registration",
    )
    aliases: str = option(
        "",
        "With --discovery: more names of the model, for frontends, with commas.",
        group="Registration",
    )
    lease_ttl_s: float = option(
        LEASE_TTL_S,
        "With --discovery: how long an engine stays registered that is gone without a word.",
        env=("ETCD_LEASE_TTL",),
        group="Registration",
    )
    drain_timeout_s: float = option(
        5.0,
        "How long running requests may finish at shutdown.",
        group="Processes and shutdown",
        short=True,
    )

    def __post_init__(self) -> None:
        require("port", 0 <= self.port <= 65535, "a port is outside 0..65535")
        if self.nats is not None:
            split_nats_url(self.nats)
        self.nats_auth.check_has_server(self.nats)
        if self.worker_id is not None:
            require("worker_id", 0 <= self.worker_id < 2**64, "must fit 64 bits")
        require("heartbeat_s", 0 <= self.heartbeat_s < math.inf, "must be finite, at least 0")
        require_choice("dialect", self.dialect, DIALECTS)
        require_choice("key_generation", self.key_generation, GENERATIONS)
        if self.discovery.backend(given_workers=True) == "kubernetes":
            text = "an object of Kubernetes has no place for keys of the seed generation"
            require("key_generation", self.generation == "today", text)
        require_positive("lease_ttl_s", self.lease_ttl_s)
        require("drain_timeout_s", self.drain_timeout_s >= 0, "must not be negative")
        for key in ("host", "namespace", "component", "endpoint"):
            require(key, bool(getattr(self, key)), "must not be empty")

    @property
    def generation(self) -> Generation:
        """`key_generation`, as those who write keys take it."""
        return "seed" if self.key_generation == "seed" else "today"

    @property
    def stores_metadata(self) -> bool:
        """Whether what engines need of each other stands in the store, if there is one: objects of
        Kubernetes have no place for it."""
        return self.discovery.backend(given_workers=True) != "kubernetes"


def require(key: str, holds: bool, text: str) -> None:
    """ConfigError for a setting of which something does not hold."""
    if not holds:
        raise bad_setting(key, text)


def require_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    require(key, value in choices, f"{value!r} is not one of {', '.join(choices)}")


def require_positive(key: str, value: float) -> None:
    require(key, value > 0 and math.isfinite(value), "must be a number greater than 0")
