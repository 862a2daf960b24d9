"""The event plane that a served engine's KV events are published on."""

from ...base.urls import DEFAULT_NATS_URL, redact_url
from ...runtime.event_planes import EventPlane, NatsPlane, probe
from ...runtime.event_planes.jetstream import (
    EventStreamClient,
    JetStreamPlane,
    StreamNames,
    max_age_s,
)
from ...runtime.kv_stores import NatsAddress, NatsConnection
from ...transport.security import NatsAuth
from .config import ServingConfig


async def open_event_plane(config: ServingConfig) -> EventPlane | None:
    """The plane to publish on; None if no server was named and none answers in the usual place.
    ConfigError if it cannot be had."""
    if config.plane.is_zmq:
        backend = config.discovery.backend(given_workers=True)
        say(f"events: over ZMQ, found in {backend}")
        return config.plane.open(config.discovery, backend, config.host, config.advertise_host)
    url = config.nats
    if url is None:
        if not await probe(DEFAULT_NATS_URL):
            say(f"events: none published, no NATS server answers on {DEFAULT_NATS_URL}")
            return None
        url = DEFAULT_NATS_URL
    say(f"events: {redact_url(url)}")
    auth = NatsAuth(config.nats_auth)
    plane = NatsPlane(url, auth=auth)
    if not config.durable_kv_events:
        return plane
    names = StreamNames.of_endpoint(config.namespace, config.component, config.endpoint)
    connection = NatsConnection(NatsAddress(url, auth))
    client = EventStreamClient(connection, names, max_age_s=max_age_s())
    durable = JetStreamPlane(plane, client)
    try:
        await durable.start()
    except BaseException:
        await durable.close()
        raise
    return durable


def say(line: str) -> None:
    """A line for whoever started the command, at once."""
    print(line, flush=True)
