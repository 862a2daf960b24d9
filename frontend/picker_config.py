"""Settings of the endpoint picker."""

from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import Any, ClassVar

from ..process.settings import bad_setting, option
from ..server.config import ServeConfig
from ..server.mock_process import MockEnginesConfig
from ..workers.records import STATIC
from ..workers.worker_url import WorkerUrl, parse_worker
from .config import EnvoyConfig, FrontendConfig, as_in_serve, not_served
from .pods_config import DECODE, PREFILL, PodsConfig

_SCHEMES = {"": "openai+http", "http": "openai+http", "https": "openai+https"}
as_in_envoy = partial(as_in_serve, group=EnvoyConfig)
_OWN = tuple(_SCHEMES.values())


@dataclass(frozen=True, kw_only=True)
class PickerConfig(ServeConfig):
    """What `dynamo-router epp` runs. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Endpoint picker"

    grpc_port: int = option(
        9002,
        "Port of Envoy's external processing (gRPC); 0 takes a free one.",
        "--grpc-port",
        "--ext-proc-port",
        group="Listening",
        short=True,
    )
    grpc_health_port: int | None = as_in_envoy("grpc_health_port", 9003, short=True)
    secure_serving: bool = as_in_envoy("secure_serving", short=True)
    workers: tuple[str, ...] = option(
        (),
        "An engine that speaks OpenAI's HTTP, IP:PORT[?events=URL&replay=URL&id=WORKER_ID&role=ROLE"
        "]; events are those of vLLM over ZMQ, tcp://IP:PORT: without, its cache is predicted. With"
        " role=prefill it computes prompts for the others. May be repeated.",
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
    endpoint_port: int | None = as_in_envoy("endpoint_port")
    pods: PodsConfig = field(default_factory=PodsConfig, metadata={"inline": True})
    prefill_workers: tuple[str, ...] = not_served(())
    model_path: str | None = as_in_serve("model_path")
    token_cache_bytes: int = as_in_serve("token_cache_bytes")
    model_id: str | None = option(
        None,
        "The one name that clients may call the model by, in place of its engines'. Not given: the"
        " engines judge the name.",
        short=True,
    )
    fallbacks: int = as_in_envoy("fallbacks")
    pick_timeout_s: float = as_in_envoy("pick_timeout_s")
    port: int = not_served(8000)
    dns_refresh_s: float = not_served(10.0)
    mock_engines: MockEnginesConfig = not_served(MockEnginesConfig())
    allowed_origins: tuple[str, ...] = not_served(())
    response_host: str | None = not_served(None)

    def __post_init__(self) -> None:
        found = [without_role(url) for url in self.workers]
        for key, wanted in (("prefill_workers", True), ("workers", False)):
            urls = (engine_url(url) for url, role in found if (role == PREFILL) is wanted)
            object.__setattr__(self, key, tuple(urls))
        super().__post_init__()
        _ = self.frontend
        if not 0 <= self.grpc_port <= 65535:
            raise bad_setting("grpc_port", "must be in 0..65535")
        _ = self.envoy
        if self.pods.are_watched and self.backend != STATIC:
            text = "pods are endpoints already (pool, endpoint_selector): give one of them"
            raise bad_setting("discovery", text)
        if self.backend != STATIC and self.endpoint_port is None:
            text = "needs endpoint_port: workers' cards do not have the port of their HTTP API"
            raise bad_setting("discovery", text)
        if not self.workers and self.backend == STATIC and not self.pods.are_watched:
            text = "there is no endpoint to pick: give --endpoint, --pool, or --discovery"
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
    def envoy(self) -> EnvoyConfig:
        """How Envoy is answered."""
        return EnvoyConfig(
            ext_proc_port=self.grpc_port,
            grpc_health_port=self.grpc_health_port,
            secure_serving=self.secure_serving,
            endpoint_port=self.endpoint_port,
            fallbacks=self.fallbacks,
            pick_timeout_s=self.pick_timeout_s,
        )

    @property
    def frontend(self) -> FrontendConfig:
        """How text is read."""
        return FrontendConfig(model_path=self.model_path, token_cache_bytes=self.token_cache_bytes)


def without_role(endpoint: str) -> tuple[str, str]:
    """An endpoint without the role that it names, and that; ConfigError if it is none."""
    url, mark, query = endpoint.partition("?")
    claims = query.split("&") if mark else []
    roles = [claim.removeprefix("role=") for claim in claims if claim.startswith("role=")]
    if any(role not in (PREFILL, DECODE) for role in roles) or len(roles) > 1:
        raise bad_setting("workers", f"role is not {PREFILL} or {DECODE}")
    rest = "&".join(claim for claim in claims if not claim.startswith("role="))
    return f"{url}?{rest}" if rest else url, roles[0] if roles else ""


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
