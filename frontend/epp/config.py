"""Settings of the endpoint picker."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, ClassVar

from ...process.setting_checks import require_finite
from ...process.settings import SHORTEST_S, bad_setting, option
from ...server.config import ServeConfig
from ...server.mock_process import MockEnginesConfig
from ...workers.records import STATIC
from ...workers.worker_url import WorkerUrl, parse_worker
from ..config import FrontendConfig, as_in_serve, not_served

MOST_FALLBACKS = 8
_SCHEMES = {"": "openai+http", "http": "openai+http", "https": "openai+https"}
_OWN = tuple(_SCHEMES.values())


@dataclass(frozen=True, kw_only=True)
class PickerConfig(ServeConfig):
    """What `dynamo-router epp` runs. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Endpoint picker"

    grpc_port: int = option(
        9002,
        "Port of Envoy's external processing (gRPC); 0 takes a free one.",
        group="Listening",
        short=True,
    )
    grpc_health_port: int = option(
        9003,
        "Port of grpc.health.v1 alone, never with TLS; 0 takes a free one.",
        group="Listening",
        short=True,
    )
    secure_serving: bool = option(
        True,
        "Serve external processing over TLS: with --tls-cert and --tls-key, else with a certificate"
        " that is made at the start and that nothing vouches for (needs the package cryptography).",
        short=True,
    )
    workers: tuple[str, ...] = option(
        (),
        "An engine that speaks OpenAI's HTTP, IP:PORT[?events=URL&replay=URL&id=WORKER_ID]; events"
        " are those of vLLM over ZMQ, tcp://IP:PORT: without, its cache is predicted. May be"
        " repeated.",
        "--endpoint",
        group="Workers",
        url=True,
        short=True,
    )
    endpoint: str = option(
        "generate",
        "Endpoint of the workers in the store, and of their event subjects.",
        "--component-endpoint",
        group="Workers",
    )
    endpoint_port: int | None = option(
        None,
        "Port of OpenAI's API at the host of each worker that a store names (--discovery): that of"
        " a frontend beside it, which is given the worker by headers.",
        group="Workers",
    )
    pool: str | None = option(
        None, "Name of an InferencePool of Kubernetes. Not served yet: refused.", group="Workers"
    )
    pool_namespace: str | None = option(
        None, "Its namespace. Not served yet: refused.", group="Workers"
    )
    model_path: str | None = as_in_serve("model_path")
    token_cache_bytes: int = as_in_serve("token_cache_bytes")
    model_id: str | None = option(
        None,
        "The one name that clients may call the model by, in place of its engines'. Not given: the"
        " engines judge the name.",
        short=True,
    )
    fallbacks: int = option(
        2, "Endpoints that Envoy is given beside the best one, should that not be reached."
    )
    pick_timeout_s: float = option(
        5.0,
        "How long a pick may take, its time in the admission queue included; then 504. Envoy itself"
        " waits for ever.",
    )
    port: int = not_served(8000)
    dns_refresh_s: float = not_served(10.0)
    mock_engines: MockEnginesConfig = not_served(MockEnginesConfig())
    allowed_origins: tuple[str, ...] = not_served(())
    response_host: str | None = not_served(None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", tuple(map(engine_url, self.workers)))
        super().__post_init__()
        _ = self.frontend
        for key in ("grpc_port", "grpc_health_port"):
            if not 0 <= getattr(self, key) <= 65535:
                raise bad_setting(key, "must be in 0..65535")
        if self.endpoint_port is not None and not 1 <= self.endpoint_port <= 65535:
            raise bad_setting("endpoint_port", "must be in 1..65535")
        if not 0 <= self.fallbacks <= MOST_FALLBACKS:
            raise bad_setting("fallbacks", f"must be in 0..{MOST_FALLBACKS}")
        require_finite(self, SHORTEST_S, "pick_timeout_s")
        for key in ("pool", "pool_namespace"):
            if getattr(self, key) is not None:
                text = "InferencePools are not watched yet; give --endpoint, or --discovery"
                raise bad_setting(key, text)
        if self.backend != STATIC and self.endpoint_port is None:
            text = "needs endpoint_port: workers' cards do not have the port of their HTTP API"
            raise bad_setting("discovery", text)
        if not self.workers and self.backend == STATIC:
            text = "there is no endpoint to pick: give --endpoint, or --discovery"
            raise bad_setting("workers", text)
        for key, wanted in (
            ("limits.hedge_after_s", self.limits.hedge_after_s is not None),
            ("limits.migration_limit", self.limits.migration_limit > 0),
        ):
            if wanted:
                raise bad_setting(key, "Envoy carries the requests of a picker, not the router")

    @property
    def starts_nats(self) -> bool:
        """Engines that speak OpenAI's HTTP publish nothing there."""
        return False

    @property
    def frontend(self) -> FrontendConfig:
        """How text is read."""
        return FrontendConfig(model_path=self.model_path, token_cache_bytes=self.token_cache_bytes)


def engine_url(endpoint: str) -> str:
    """The worker that an endpoint is; ConfigError if Envoy could not be sent there."""
    scheme, colon, rest = endpoint.partition("://")
    if not colon or "?" in scheme:
        scheme, rest = "", endpoint
    if scheme in _OWN:
        url = endpoint
    elif scheme in _SCHEMES:
        url = f"{_SCHEMES[scheme]}://{rest}"
    else:
        raise bad_setting("workers", f"{scheme}: an endpoint is IP:PORT of OpenAI's HTTP")
    url = url.replace("://localhost:", "://127.0.0.1:", 1)
    parsed: Any = parse_worker(url)
    assert isinstance(parsed, WorkerUrl)
    host = parsed.address.rpartition(":")[0].strip("[]")
    try:
        ip_address(host)
    except ValueError:
        text = f"{host} is no IP address, and Envoy looks up no names of endpoints"
        raise bad_setting("workers", text) from None
    return url
