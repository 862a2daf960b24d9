"""Settings of endpoints that are pods of Kubernetes."""

import re
from dataclasses import dataclass
from typing import ClassVar

from ..process.settings import bad_setting, option

PREFILL, DECODE = "prefill", "decode"
"""What an engine runs of a request: the roles of endpoints and pods."""
MOST_PORTS = 8
"""Target ports of a pool."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"([-a-zA-Z0-9.]{1,253}/)?[-\w.]{1,63}=[-\w.]{0,63}")


@dataclass(frozen=True, kw_only=True)
class PodsConfig:
    """ConfigError, naming the key, on a bad value. How the API server is reached says the
    environment, as for discovery over Kubernetes."""

    GROUP: ClassVar[str] = "Pods as endpoints"

    pool: str | None = option(
        None,
        "Name of an InferencePool (inference.networking.k8s.io/v1): each target port of each of its"
        " pods that is ready is an endpoint.",
        "--pool",
        "--pool-name",
        short=True,
    )
    pool_namespace: str | None = option(
        None, "Namespace of the pool, or of the pods. Not given: that of the picker's own pod."
    )
    endpoint_selector: str | None = option(
        None,
        "In place of a pool: labels of the pods, KEY=VALUE[,KEY=VALUE].",
    )
    endpoint_target_ports: str | None = option(
        None, f"With --endpoint-selector: their ports of OpenAI's API, 1 to {MOST_PORTS}, by comma."
    )
    events_port: int | None = option(
        None,
        "Port at which each pod publishes its KV events over ZMQ (vLLM, SGLang); the next target"
        " port's are at the next number. Not given: caches are predicted.",
        short=True,
    )
    events_replay_port: int | None = option(
        None, "Port at which they can be asked for again, likewise."
    )

    def __post_init__(self) -> None:
        if self.pool is not None and not _NAME.fullmatch(self.pool):
            raise bad_setting("pool", f"{self.pool!r} is no name of an object of Kubernetes")
        namespace = self.pool_namespace
        if namespace is not None and not _NAMESPACE.fullmatch(namespace):
            raise bad_setting("pool_namespace", f"{namespace!r} is no name of a namespace")
        if self.pool is not None and self.endpoint_selector is not None:
            raise bad_setting("endpoint_selector", "a pool has a selector of its own: give one")
        if (self.endpoint_selector is None) != (self.endpoint_target_ports is None):
            text = "endpoint_selector and endpoint_target_ports need each other"
            raise bad_setting("endpoint_selector", text)
        for part in (self.endpoint_selector or "a=b").split(","):
            if not _LABEL.fullmatch(part):
                text = f"{part[:100]!r} is not KEY=VALUE, a label and its value"
                raise bad_setting("endpoint_selector", text)
        _ = self.ports
        if self.events_replay_port is not None and self.events_port is None:
            raise bad_setting("events_replay_port", "needs events_port")
        for key in ("events_port", "events_replay_port"):
            port = getattr(self, key)
            if port is not None and not 1 <= port <= 65536 - MOST_PORTS:
                raise bad_setting(key, f"must be in 1..{65536 - MOST_PORTS}")
        if not self.are_watched and (namespace or self.events_port) is not None:
            key = "events_port" if namespace is None else "pool_namespace"
            raise bad_setting(key, "needs pool or endpoint_selector")

    @property
    def are_watched(self) -> bool:
        """Whether pods are endpoints."""
        return self.pool is not None or self.endpoint_selector is not None

    @property
    def ports(self) -> tuple[int, ...]:
        """Of --endpoint-target-ports."""
        given = self.endpoint_target_ports
        if given is None:
            return ()
        found = [part.strip() for part in given.split(",")]
        ports = tuple(int(part) for part in found if part.isdecimal() and len(part) < 6)
        unique = len({*ports}) == len(found) <= MOST_PORTS
        if not unique or not all(1 <= port <= 65535 for port in ports):
            text = f"{given[:100]!r} are not 1 to {MOST_PORTS} different ports, 1..65535, by comma"
            raise bad_setting("endpoint_target_ports", text)
        return ports
