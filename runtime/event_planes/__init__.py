"""Events between processes: publish and subscribe by subject, in this process or over NATS."""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .embedded_nats import EmbeddedNats, find_nats_server, probe
from .event_plane import (
    KV_EVENTS,
    KV_HEARTBEAT,
    KV_RESYNC,
    EventPlane,
    Handler,
    PlaneBase,
    PlaneOver,
    PlaneState,
    PlaneStats,
    Subscription,
    endpoint_subject,
)
from .local_plane import LocalPlane
from .shared_plane import SharedPlane
from .typed_events import Event, EventPublisher, EventSubscriber

if TYPE_CHECKING:
    from ...transport.nats import NatsLink
    from .nats_plane import NatsPlane

__all__ = [
    "KV_EVENTS",
    "KV_HEARTBEAT",
    "KV_RESYNC",
    "EmbeddedNats",
    "Event",
    "EventPlane",
    "EventPublisher",
    "EventSubscriber",
    "Handler",
    "LocalPlane",
    "NatsLink",
    "NatsPlane",
    "PlaneBase",
    "PlaneOver",
    "PlaneState",
    "PlaneStats",
    "SharedPlane",
    "Subscription",
    "endpoint_subject",
    "find_nats_server",
    "probe",
]

# The client of NATS is imported by its first user.
__getattr__ = lazy_names(__name__, {"NatsLink": "...transport.nats", "NatsPlane": ".nats_plane"})
