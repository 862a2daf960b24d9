"""Settings of `dynamo-router planner`."""

import shlex
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from ...base.urls import redact_url
from ...engines.mocker import EngineConfig
from ...process.logs import LOG_FORMATS, LogFormat
from ...process.setting_checks import require_at_least, require_positive
from ...process.settings import bad_setting, option
from ...runtime.components import EndpointName
from ...server.observability import LOG_LEVELS
from ...workers.records import STATIC, DiscoveryConfig
from ..constraints import Constraints
from ..fleet import ROLES, Fleet, Role
from ..objectives import Objectives
from ..planning import PlanningConfig

LOCAL, VIRTUAL, KUBERNETES, METRICS = "local", "virtual", "kubernetes", "metrics"
CONNECTORS = (LOCAL, VIRTUAL, KUBERNETES, METRICS)
PLAN_STORES = ("etcd", "file", "memory", "nats")


@dataclass(frozen=True, kw_only=True)
class RouterAccessConfig:
    """Which routers there are, and what they are shown."""

    GROUP: ClassVar[str] = "Routers"

    routers: tuple[str, ...] = option(
        ("http://127.0.0.1:8081",),
        "Admin listener of a router in front of the engines, http(s)://HOST:PORT; may be repeated:"
        " every router has to drain an engine before it is stopped.",
        "--router",
        url=True,
        short=True,
    )
    router_token_file: str | None = option(
        None, "File with the bearer token of a caller with the role admin."
    )
    router_tls_ca: str | None = option(
        None, "Authorities of the routers' certificates; not given: the system's."
    )

    def __post_init__(self) -> None:
        if not self.routers:
            raise bad_setting("routers", "at least one is needed")
        for url in self.routers:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                text = f"{redact_url(url)!r} is not http://HOST:PORT or https://HOST:PORT"
                raise bad_setting("routers", text)
        if len(set(self.routers)) < len(self.routers):
            raise bad_setting("routers", "a router is there twice")


@dataclass(frozen=True, kw_only=True)
class ConnectorConfig:
    """What starts and stops engines. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Connector"

    connector: str = option(
        LOCAL,
        "What starts and stops engines: mock engines of our own (local), an environment that reads"
        " Dynamo's keys (virtual), Deployments (kubernetes), an autoscaler that reads"
        " dynamo_planner_desired_replicas (metrics).",
        choices=CONNECTORS,
        short=True,
    )
    engine_arguments: str = option(
        "",
        "With local: more arguments of `dynamo-router mocker` for each engine, in one string.",
        short=True,
    )
    deployments: tuple[str, ...] = option(
        (),
        "With kubernetes: ROLE=NAME, the Deployment of a role's engines; may be repeated.",
        "--deployment",
        short=True,
    )
    follow: bool = option(
        False,
        "With local: do not plan, but have the engines that a virtual connector's keys ask for.",
    )

    def __post_init__(self) -> None:
        if self.connector not in CONNECTORS:
            text = f"{self.connector!r} is not one of {', '.join(CONNECTORS)}"
            raise bad_setting("connector", text)
        if self.connector == KUBERNETES and not self.deployments:
            raise bad_setting("deployments", "kubernetes needs the Deployment of each role")
        if self.connector != KUBERNETES and self.deployments:
            raise bad_setting("deployments", "Deployments are kubernetes' alone")
        if self.connector != LOCAL and self.engine_arguments:
            raise bad_setting("engine_arguments", "engines of our own are local's alone")
        if self.connector != LOCAL and self.follow:
            raise bad_setting("follow", "only local engines follow keys")
        try:
            shlex.split(self.engine_arguments)
        except ValueError as error:
            raise bad_setting("engine_arguments", f"no arguments: {error}") from None
        _ = self.deployment_of

    @property
    def deployment_of(self) -> dict[Role, str]:
        """The Deployment of each role."""
        found: dict[Role, str] = {}
        for pair in self.deployments:
            name, equals, deployment = pair.partition("=")
            role: Role | None = next((role for role in ROLES if role == name), None)
            if not equals or not deployment or role is None:
                text = f"{pair!r} is not ROLE=NAME, with a role of {', '.join(ROLES)}"
                raise bad_setting("deployments", text)
            if role in found:
                raise bad_setting("deployments", f"{role} is there twice")
            found[role] = deployment
        return found


@dataclass(frozen=True, kw_only=True)
class PlannerConfig:
    """What `dynamo-router planner` runs. Raises ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Planning"

    place: ConnectorConfig = field(default_factory=ConnectorConfig, metadata={"inline": True})
    dry_run: bool = option(
        False, "Print what would be done, and why; write, lock and change nothing.", short=True
    )
    namespace: str = option("dynamo", "Namespace that the engines register in.", short=True)
    model: str | None = option(
        None, "Model whose engines are planned. Not given: the only one.", short=True
    )
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig, metadata={"inline": True})
    plan_store: str | None = option(
        None,
        "Store of the lock and the decisions. Not given: that of --discovery; Kubernetes keeps no"
        " such keys, so that another one is needed beside it.",
        choices=PLAN_STORES,
        short=True,
    )
    access: RouterAccessConfig = field(
        default_factory=RouterAccessConfig, metadata={"inline": True}
    )
    objectives: Objectives = field(default_factory=Objectives, metadata={"inline": True})
    constraints: Constraints = field(default_factory=Constraints, metadata={"inline": True})
    planning: PlanningConfig = field(default_factory=PlanningConfig, metadata={"inline": True})
    engine: EngineConfig = field(default_factory=EngineConfig)
    engine_speed: float = option(
        1.0,
        "How much faster the engines are than those of [engine]; corrected by what is measured.",
    )
    start_limit_s: float = option(
        300.0, "Time in which an engine has to be ready; then it is started once more.", short=True
    )
    drain_limit_s: float = option(
        900.0, "Time that the last requests of an engine have, before its removal is given up."
    )
    parcel_s: float = option(
        30.0, "Time that a drained prefill engine stays, for decode engines that still read."
    )
    admit_s: float = option(
        10.0, "Time after which a ready engine counts as serving though it had no request yet."
    )
    look_every_s: float = option(1.0, "Time between two looks at routers and engines.")
    host: str = option("127.0.0.1", "Address to listen on.", group="Listening", short=True)
    port: int = option(
        9091, "HTTP port of /metrics, /plan and /health; 0 takes a free one.", group="Listening",
        short=True,
    )  # fmt: skip
    log_level: str = option(
        "info", "Least severe log line to print.", choices=LOG_LEVELS, group="Logs", short=True
    )
    log_format: LogFormat = option(
        "text", "How log lines are written: text, or JSON objects.", choices=LOG_FORMATS,
        group="Logs",
    )  # fmt: skip

    def __post_init__(self) -> None:
        require_positive(
            self,
            *("start_limit_s", "drain_limit_s", "look_every_s", "engine_speed"),
        )
        require_at_least(self, 0, "parcel_s", "admit_s", "port")
        if self.port > 65535:
            raise bad_setting("port", "must be in 0..65535")
        for key, allowed in (("log_level", LOG_LEVELS), ("log_format", LOG_FORMATS)):
            if getattr(self, key) not in allowed:
                text = f"{getattr(self, key)!r} is not one of {', '.join(allowed)}"
                raise bad_setting(key, text)
        try:
            EndpointName(self.namespace, "backend", "generate")
        except ValueError as error:
            raise bad_setting("namespace", str(error)) from None
        backend = self.backend
        if backend == STATIC:
            text = "engines are found in a store, not in a list: etcd, file, kubernetes, nats"
            raise bad_setting("discovery", text)
        if self.decisions_backend not in PLAN_STORES:
            text = f"{backend} keeps no decisions and no lock: give --plan-store"
            raise bad_setting("plan_store", text)
        if named := self.place.deployment_of:
            if missing := [role for role in self.roles_used if role not in named]:
                raise bad_setting("deployments", f"no Deployment is named for {missing[0]}")

    @property
    def backend(self) -> str:
        """Where engines are found."""
        return self.discovery.backend(given_workers=False)

    @property
    def decisions_backend(self) -> str:
        return self.plan_store or self.backend

    @property
    def roles_used(self) -> tuple[Role, ...]:
        if self.planning.roles == "disaggregated":
            return ("prefill", "decode")
        return ("aggregated",) if self.planning.roles == "aggregated" else ROLES

    @property
    def least(self) -> Fleet:
        """Engines that there are always to be."""
        least = self.constraints.engines_min
        if self.planning.roles == "disaggregated":
            return Fleet(prefill=least, decode=least)
        return Fleet(aggregated=least if self.planning.roles == "aggregated" else 0)
