"""How processes hear each other: publish and subscribe by subject, in this process or over NATS."""

from ...transport.nats import NatsLink
from .embedded_nats import EmbeddedNats, find_nats_server, probe
from .event_plane import (
    KV_EVENTS,
    KV_HEARTBEAT,
    KV_METRICS,
    KV_RESYNC,
    EventPlane,
    Handler,
    PlaneBase,
    PlaneOver,
    PlaneState,
    PlaneStats,
    StateCallback,
    Subscription,
    endpoint_subject,
)
from .local_plane import LocalPlane
from .nats_plane import NatsPlane
from .shared_plane import SharedPlane
from .typed_events import Event, EventPublisher, EventSubscriber, GroupPlane

__all__ = [
    "KV_EVENTS",
    "KV_HEARTBEAT",
    "KV_METRICS",
    "KV_RESYNC",
    "EmbeddedNats",
    "Event",
    "EventPlane",
    "EventPublisher",
    "EventSubscriber",
    "GroupPlane",
    "Handler",
    "LocalPlane",
    "NatsLink",
    "NatsPlane",
    "PlaneBase",
    "PlaneOver",
    "PlaneState",
    "PlaneStats",
    "SharedPlane",
    "StateCallback",
    "Subscription",
    "endpoint_subject",
    "find_nats_server",
    "probe",
]
