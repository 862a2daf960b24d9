"""Over what KV events go: a setting that router and workers share."""

from dataclasses import dataclass

from ...process.settings import bad_setting, option
from ...process.system import reachable_host
from ...runtime.event_planes.zmq import ZmqPlane
from .config import STATIC, DiscoveryConfig

NATS, ZMQ = "nats", "zmq"


@dataclass(frozen=True, kw_only=True)
class EventPlaneConfig:
    """ConfigError, naming the key, on a bad value."""

    event_plane: str = option(
        NATS,
        f"Over what KV events go: {NATS}, or {ZMQ} (no broker: publishers are found in the store of"
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
