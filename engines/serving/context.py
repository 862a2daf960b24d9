"""ServingContext: what the engines of one process share: TLS, store, request plane, event plane."""

from contextlib import AsyncExitStack
from typing import Self

from ...base.clock import SystemClock
from ...base.urls import DEFAULT_NATS_URL, redact_url
from ...process.standard_output import print_line
from ...runtime.event_planes import EventPlane, NatsPlane, probe
from ...runtime.event_planes.jetstream import (
    EventStreamClient,
    JetStreamPlane,
    StreamNames,
    max_age_s,
)
from ...runtime.kv_stores import KeyValueStore, NatsAddress, NatsConnection
from ...runtime.request_planes import RequestServer
from ...transport.security import FileWatch, NatsAuth, ServerTls
from .config import ServingConfig


async def open_event_plane(config: ServingConfig) -> EventPlane | None:
    """The plane to publish on; None if no server was named and none answers in the usual place.
    ConfigError if it cannot be had."""
    if config.plane.is_zmq:
        backend = config.discovery.backend(given_workers=True)
        print_line(f"events: over ZMQ, found in {backend}")
        return config.plane.open(config.discovery, backend, config.host, config.advertise_host)
    url = config.nats
    if url is None:
        if not await probe(DEFAULT_NATS_URL):
            print_line(f"events: none published, no NATS server answers on {DEFAULT_NATS_URL}")
            return None
        url = DEFAULT_NATS_URL
    print_line(f"events: {redact_url(url)}")
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


class ServingContext:
    """Opened as the configuration says while entered. ConfigError if one of them cannot be had."""

    def __init__(self, config: ServingConfig, *, capacity: int) -> None:
        """`capacity`: most requests at a time over Dynamo's request plane."""
        self._config = config
        self._capacity = capacity
        self._stack = AsyncExitStack()
        self.tls: ServerTls | None = None
        self.store: KeyValueStore | None = None
        """where the engines are registered"""
        self.requests: RequestServer | None = None
        """where they answer as Dynamo's workers"""
        self.plane: EventPlane | None = None
        """where their KV events are published"""

    async def __aenter__(self) -> Self:
        config, closed = self._config, self._stack.push_async_callback
        try:
            self.plane = await open_event_plane(config)
            if self.plane is not None:
                closed(self.plane.close)
            self.store = config.discovery.open(config.discovery.backend(given_workers=True))
            if self.store is not None:
                closed(self.store.close)
            if self.store is not None and config.dialect == "dynamo":
                self.requests = RequestServer(capacity=self._capacity)
                closed(self.requests.close)
                await self.requests.start(config.host)
            if config.tls.on:
                self.tls = ServerTls(config.tls)
                watch = FileWatch(SystemClock())
                watch.files.append(self.tls.files)
                watch.start()
                closed(watch.close)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()
