"""Configuration of the service: ServeConfig, with that of its decisions inside."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..base.errors import ConfigError
from ..base.urls import DEFAULT_NATS_URL, split_nats_url
from ..process.setting_checks import require_finite
from ..process.settings import SHORTEST_S, bad_setting, option
from ..router.config import KvRouterConfig
from ..router.disagg import DisaggConfig
from ..transport.security import NatsAuthConfig, ServerTlsConfig, WorkerTlsConfig
from ..workers.channels import ConnectionPolicy
from ..workers.health_tracker import HealthPolicy
from ..workers.outliers import OutlierPolicy
from ..workers.records import STATIC, DiscoveryConfig, EventPlaneConfig
from ..workers.worker_url import parse_worker
from .caller_limits import CallerLimits
from .mock_process import MockEnginesConfig
from .observability import ObservabilityConfig
from .request_limits import HandoffLimits, RequestLimits

SHORTEST_HANG_S = 1.0
"""Many times what a loop may stand still by itself."""
SHORTEST_EXPIRY_S = 5.0
"""A service that is held up for a moment must not lose its bookings."""


@dataclass(frozen=True, kw_only=True)
class FrontsConfig:
    """Several processes on the same ports. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Processes and shutdown"

    fronts: int = option(
        1,
        "Processes that serve the same ports, each a whole router; they share what they have"
        " booked, and are started again when they end.",
        short=True,
    )
    front_hang_timeout_s: float = option(
        30.0,
        "With several processes: one whose event loop has stood still for so long is killed and"
        " started again; 0: never.",
    )

    @property
    def several(self) -> bool:
        """Whether ports are shared with other processes of this router."""
        return self.fronts > 1

    def __post_init__(self) -> None:
        if not 1 <= self.fronts <= MOST_FRONTS:
            raise bad_setting("fronts", f"{self.fronts} must be in 1..{MOST_FRONTS}")
        if self.front_hang_timeout_s:
            require_finite(self, SHORTEST_HANG_S, "front_hang_timeout_s")


MOST_FRONTS = 64
EVENT_SOURCES = ("auto", "nats", "jetstream", "grpc", "zmq", "http", "none")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """What `dynamo-router serve` runs. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Workers"

    has_grpc: ClassVar[bool] = True
    """there is a gRPC port"""
    host: str = option("127.0.0.1", "Address to listen on.", group="Listening", short=True)
    port: int = option(8000, "gRPC port; 0 takes a free one.", group="Listening", short=True)
    http_port: int = option(
        8081,
        "HTTP port for /metrics, /health, /workers; 0 takes a free one.",
        group="Listening",
        short=True,
    )
    admin_host: str | None = option(
        None,
        "Address of the admin routes, which change the router. Not given: loopback.",
        group="Listening",
    )
    admin_port: int | None = option(
        None,
        "HTTP port of the admin routes; 0 takes a free one. Not given: the HTTP port.",
        group="Listening",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "Another name of this router in URLs (Host header); may be repeated.",
        "--allowed-host",
        group="Listening",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "Web pages of this origin, SCHEME://HOST[:PORT], or of all (*), may have requests answered"
        " (CORS); may be repeated.",
        "--allowed-origin",
    )
    auth_tokens: str | None = option(
        None,
        "File of the callers: tokens, names, roles. Not given: callers need no token.",
        group="Security",
        short=True,
    )
    tls: ServerTlsConfig = field(default_factory=ServerTlsConfig)
    worker_tls: WorkerTlsConfig = field(default_factory=WorkerTlsConfig)
    worker_api_key_file: str | None = option(
        None,
        "File with the key that engines which speak OpenAI's HTTP ask for. Not given: that of the"
        " variable DYNAMO_ROUTER_WORKER_API_KEY, if it is set.",
        group="Security",
    )
    router: KvRouterConfig = field(default_factory=KvRouterConfig)
    workers: tuple[str, ...] = option(
        (),
        "An engine, grpc://HOST:PORT[?id=WORKER_ID], or grpcs:// for TLS; openai+http:// or "
        "openai+https:// if it speaks OpenAI's HTTP; grpc+dns://NAME:PORT:"
        " one at each address of a name. May be repeated.",
        "--worker",
        url=True,
        short=True,
    )
    prefill_workers: tuple[str, ...] = option(
        (),
        "An engine that computes prompts for the others, as --worker; may be repeated.",
        "--prefill-worker",
        url=True,
        group="Prefill and decode workers",
    )
    prefill_component: str | None = option(
        None,
        "With --discovery: component at which prefill workers are registered, which are found there"
        " then; it may be that of the others.",
        group="Prefill and decode workers",
    )
    dns_refresh_s: float = option(10.0, "How often names of grpc+dns:// are looked up.")
    mock_engines: MockEnginesConfig = field(
        default_factory=MockEnginesConfig,
        metadata={"inline": True, "packed": "--mocker-options"},
    )
    event_sources: str = option(
        "auto",
        "Source of KV events: nats (the event plane), jetstream (the same, with"
        " --durable-kv-events), grpc (SubscribeKvEvents of the engine), zmq or http (the address"
        " in its URL), auto: for each worker the first of these that it has. The cache of a worker"
        " without events is predicted from routing; none: that of every worker, as"
        " --no-kv-events.",
        choices=EVENT_SOURCES,
        group="KV events",
        short=True,
    )
    nats: str | None = option(
        None,
        url=True,
        env=("NATS_SERVER",),
        help=f"NATS server for KV events. Not given: {DEFAULT_NATS_URL} if one answers there, "
        "else one is started for mock engines; other engines need their own source of events.",
        group="KV events",
        short=True,
    )
    nats_auth: NatsAuthConfig = field(default_factory=NatsAuthConfig)
    durable_kv_events: bool = option(
        False,
        "Read KV events from a stream that NATS keeps (JetStream): a router that restarts goes on"
        " where it stopped.",
        "--durable-kv-events",
        "--router-durable-kv-events",
        env=("DYN_ROUTER_DURABLE_KV_EVENTS",),
        group="KV events",
    )
    router_snapshot_threshold: int = option(
        1_000_000,
        "With durable KV events: messages in the stream beyond which the index is saved in the"
        " object store, and those go that all routers have read.",
        "--router-snapshot-threshold",
        env=("DYN_ROUTER_SNAPSHOT_THRESHOLD",),
        group="KV events",
    )
    router_reset_states: bool = option(
        False,
        "With durable KV events: delete the stream and the snapshot at the start.",
        "--router-reset-states",
        env=("DYN_ROUTER_RESET_STATES",),
        group="KV events",
    )
    router_id: str = option(
        "",
        "This router's name: in other routers' logs, and of what it reads durable KV events by,"
        " where no two may have the same.",
        "--router-id",
        group="KV events",
    )
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig, metadata={"inline": True})
    plane: EventPlaneConfig = field(default_factory=EventPlaneConfig, metadata={"inline": True})
    response_host: str | None = option(
        None,
        "Address that discovered workers of Dynamo's bring their answers to; not given: --host.",
        env=("DYN_TCP_RESPONSE_STREAM_HOST",),
    )
    namespace: str = option(
        "dynamo", "Namespace of the workers, and of their event subjects.", short=True
    )
    component: str = option("backend", "Component of the workers, and of their event subjects.")
    endpoint: str = option("generate", "Endpoint of the workers, and of their event subjects.")
    model_id: str | None = option(
        None, "Model name to report; not given: the engines'.", short=True
    )
    unknown_worker_ttl_s: float = option(
        300.0, "Seconds for which events of an unregistered worker are kept.", group="KV events"
    )
    index_snapshot: str | None = option(
        None,
        "File to keep the index in, for a warm restart; not given: none.",
        group="KV events",
    )
    index_snapshot_interval_s: float = option(
        60.0, "How often that file is written.", group="KV events"
    )
    max_attempts: int = option(
        3, "Workers tried before a request fails, if none has answered yet.", group="Requests"
    )
    request_timeout_s: float | None = option(
        600.0,
        "Longest silence of a worker in a request, and so the longest time for an answer that is "
        "not streamed; none: as long as its connection lives.",
        group="Requests",
        short=True,
    )
    fronts: FrontsConfig = field(default_factory=FrontsConfig, metadata={"inline": True})
    limits: RequestLimits = field(default_factory=RequestLimits)
    disagg: DisaggConfig = field(default_factory=DisaggConfig, metadata={"inline": True})
    handoff: HandoffLimits = field(default_factory=HandoffLimits, metadata={"inline": True})
    peers: CallerLimits = field(default_factory=CallerLimits)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    outliers: OutlierPolicy = field(default_factory=OutlierPolicy)
    connection: ConnectionPolicy = field(default_factory=ConnectionPolicy)
    mixed_models: bool = option(
        False, "Admit engines of another model than most of them serve.", "--mixed-models"
    )
    drain_timeout_s: float = option(
        10.0,
        "Seconds that running requests have to finish at shutdown.",
        group="Processes and shutdown",
        short=True,
    )
    lame_duck_s: float = option(
        2.0,
        "Seconds after SIGTERM during which new requests are still served while health checks"
        " already fail.",
        group="Processes and shutdown",
    )
    observability: ObservabilityConfig = field(
        default_factory=ObservabilityConfig, metadata={"inline": True}
    )

    @property
    def backend(self) -> str:
        """Where workers are found beside those that are given: a store's name, or static."""
        given = bool(self.workers or self.mock_engines.mockers)
        return self.discovery.backend(given_workers=given)

    @property
    def starts_nats(self) -> bool:
        """Whether a NATS server of our own is of use: mock engines get its address, and workers
        that are still to be added may. Those that run already cannot know it."""
        return bool(self.mock_engines.mockers) or (not self.workers and self.backend == STATIC)

    def __post_init__(self) -> None:
        for key in ("port", "http_port"):
            if not 0 <= getattr(self, key) <= 65535:
                raise bad_setting(key, "must be in 0..65535")
        if self.admin_port is not None and not 0 <= self.admin_port <= 65535:
            raise bad_setting("admin_port", "must be in 0..65535")
        for url in self.workers:
            parse_worker(url)
        for url in self.prefill_workers:
            try:
                parse_worker(url)
            except ConfigError as error:
                text = str(error).removeprefix("workers: ")
                raise bad_setting("prefill_workers", text) from None
        if self.prefill_component is not None and self.backend == STATIC:
            raise bad_setting("prefill_component", "workers are found in a store: --discovery")
        if self.nats is not None:
            split_nats_url(self.nats)
        self.nats_auth.check_has_server(self.nats)
        if self.event_sources not in EVENT_SOURCES:
            text = f"{self.event_sources!r} is not one of {', '.join(EVENT_SOURCES)}"
            raise bad_setting("event_sources", text)
        if self.event_sources == "jetstream":
            object.__setattr__(self, "durable_kv_events", True)
        self._check_durable()
        if self.plane.is_zmq and self.event_sources == "nats":
            raise bad_setting("event_sources", "nats is not there with event_plane zmq")
        if self.event_sources == "none" and self.router.use_kv_events:
            object.__setattr__(self, "router", replace(self.router, use_kv_events=False))
        require_finite(self, 1, "max_attempts")
        require_finite(self, 0, "drain_timeout_s", "lame_duck_s", "unknown_worker_ttl_s")
        if self.index_snapshot is not None and not self.router.use_kv_events:
            raise bad_setting("index_snapshot", "needs use_kv_events")
        for key in ("namespace", "component", "endpoint"):
            if not getattr(self, key):
                raise bad_setting(key, "must not be empty")
        require_finite(
            self, SHORTEST_S, "index_snapshot_interval_s", "dns_refresh_s", "request_timeout_s"
        )
        expiry = self.router.active_request_expiry_secs
        if expiry < SHORTEST_EXPIRY_S:
            raise bad_setting(
                "active_request_expiry_secs",
                f"{expiry!r} must be at least {SHORTEST_EXPIRY_S:g}: bookings of requests in "
                "flight are renewed each second",
            )

    def _check_durable(self) -> None:
        require_finite(self, 1, "router_snapshot_threshold")
        if self.durable_kv_events and self.plane.is_zmq:
            raise bad_setting("durable_kv_events", "needs event_plane nats")
        if not self.durable_kv_events:
            return
        if self.event_sources not in ("auto", "nats", "jetstream"):
            text = f"needs events from NATS, and event_sources is {self.event_sources}"
            raise bad_setting("durable_kv_events", text)
        if not self.router.use_kv_events:
            raise bad_setting("durable_kv_events", "needs use_kv_events")
        if self.index_snapshot is not None:
            text = "has its place taken by the object store's, with durable_kv_events"
            raise bad_setting("index_snapshot", text)
