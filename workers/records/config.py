"""Where workers are found, or write themselves down: a setting that router and workers share."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...process.settings import bad_setting, option
from ...process.system import reachable_host
from ...runtime import kv_stores
from ...runtime.event_planes.zmq import ZmqPlane
from ...runtime.kv_stores import BACKENDS, KeyValueStore

STATIC = "static"
_OTHER_NAMES = {"kv_store": "etcd", "mem": "memory"}


@dataclass(frozen=True, kw_only=True)
class DiscoveryConfig:
    """ConfigError, naming the key, on a bad value. How a store is reached says the environment."""

    GROUP: ClassVar[str] = "Workers"

    discovery: str | None = option(
        None,
        f"Where workers are found: {STATIC} (those of --worker), {', '.join(BACKENDS)}. Not"
        f" given: {STATIC}; for serve without workers etcd, if ETCD_ENDPOINTS is set.",
        env=("DYN_DISCOVERY_BACKEND",),
        short=True,
    )

    def __post_init__(self) -> None:
        if self.discovery is not None and self._named not in (STATIC, *BACKENDS):
            known = ", ".join((STATIC, *BACKENDS))
            raise bad_setting("discovery", f"{self.discovery!r} is not one of {known}")

    @property
    def _named(self) -> str:
        given = self.discovery or STATIC
        return _OTHER_NAMES.get(given, given)

    def backend(self, *, given_workers: bool, environ: Mapping[str, str] | None = None) -> str:
        """The name of the store, or static. `given_workers`: the configuration has workers."""
        environ = os.environ if environ is None else environ
        if self.discovery is None and not given_workers and environ.get("ETCD_ENDPOINTS"):
            return "etcd"
        return self._named

    def open(self, backend: str) -> KeyValueStore | None:
        """The store of that name; None for static. ConfigError if its address cannot be used."""
        return None if backend == STATIC else kv_stores.open_store(backend)


NATS, ZMQ = "nats", "zmq"


@dataclass(frozen=True, kw_only=True)
class EventPlaneConfig:
    """ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "KV events"

    event_plane: str = option(
        NATS,
        f"Transport of KV events: {NATS}, or {ZMQ} (no broker: publishers are found in the store of"
        " --discovery; needs pyzmq).",
        choices=(NATS, ZMQ),
        env=("DYN_EVENT_PLANE",),
    )
    event_plane_host: str | None = option(
        None,
        f"With {ZMQ}: address that publishers listen on and are reached at; not given: --host.",
        env=("DYN_EVENT_PLANE_HOST",),
    )

    def __post_init__(self) -> None:
        if self.event_plane not in (NATS, ZMQ):
            text = f"{self.event_plane!r} is not one of {NATS}, {ZMQ}"
            raise bad_setting("event_plane", text)

    @property
    def is_zmq(self) -> bool:
        return self.event_plane == ZMQ

    def open(
        self, discovery: DiscoveryConfig, backend: str, host: str, advertise_host: str | None = None
    ) -> ZmqPlane:
        """The plane over ZMQ, found in a store of this backend, for who listens on `host`.
        ConfigError if there is no store, or no pyzmq."""
        host = self.event_plane_host or host
        store = discovery.open(backend)
        if store is None:
            text = f"{ZMQ} needs a store that publishers are found in: --discovery, not {STATIC}"
            raise bad_setting("event_plane", text)
        advertised = self.event_plane_host or advertise_host or host
        return ZmqPlane(store, host, advertise_host=reachable_host(advertised))
