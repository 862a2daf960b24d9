"""A process among others: serves endpoints, is found, finds and calls the others'."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar

from structlog import get_logger

from ...base.errors import ConfigError
from ...base.urls import joined
from ..discovery import Registrations
from ..kv_stores import LEASE_TTL_S, KeyValueStore, NatsAddress, StoreError
from ..request_planes import (
    Handler,
    NatsCarrier,
    NatsService,
    RequestClient,
    RequestContext,
    RequestServer,
    annotated,
    end_parts,
    service_name,
)
from .cancellation import CancellationToken
from .client import Client
from .components import Namespace
from .instance_selector import InstanceSelector
from .instances import (
    INSTANCES,
    SERVICES,
    EndpointName,
    Generation,
    Instance,
    decode_instance,
    path_of,
    subject_of,
)

STARTUP_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 900.0
log = get_logger(__name__)

Generator: TypeAlias = Callable[[Any, RequestContext], AsyncIterator[object]]
G = TypeVar("G", bound=Generator)


class DistributedRuntime:
    """`async with DistributedRuntime(store) as runtime:`, or `start` and `shutdown`.

    Without a store it is static: it serves and calls at known addresses, and is not discovered.
    """

    def __init__(
        self,
        store: KeyValueStore | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        lease_ttl_s: float = LEASE_TTL_S,
        generation: Generation = "today",
        capacity: int = 1024,
        startup_timeout_s: float = STARTUP_TIMEOUT_S,
        nats: NatsAddress | None = None,
        request_plane: Literal["tcp", "nats"] = "tcp",
    ) -> None:
        """`host` is where others reach us; `port` 0 is any. The store is closed with us.

        With `nats` workers of the NATS request plane can be called, and we may be one. ConfigError
        for a request plane that is none.
        """
        if request_plane not in ("tcp", "nats"):
            text = f"{request_plane!r} is no request plane: tcp or nats"
            raise ConfigError(text, key="request_plane")
        if request_plane == "nats" and nats is None:
            raise ConfigError("the NATS request plane needs the address of NATS", key="nats")
        if host in ("", "0.0.0.0", "::"):
            raise ConfigError(f"other hosts cannot reach this process at {host!r}", key="host")
        self._store, self._host, self._port = store, host, port
        self._generation: Generation = generation
        self._startup_timeout_s = startup_timeout_s
        self._lease_ttl_s = lease_ttl_s
        self._server = RequestServer(capacity)
        self._nats = NatsCarrier(nats) if nats is not None else None
        self._over_nats = request_plane == "nats"
        self._plane = RequestClient({} if self._nats is None else {"nats_tcp": self._nats})
        self._registrations: Registrations | None = None
        self._declared: dict[EndpointName, Handler] = {}
        self._served: dict[EndpointName, Instance] = {}
        self._services: dict[tuple[str, str], NatsService] = {}
        self._clients: list[Client] = []
        self._started = False
        self.token = CancellationToken()
        """cancelled when the runtime is shut down"""
        self._lease_token = self.token.child()

    @property
    def lease_token(self) -> CancellationToken:
        """Cancelled when the lease is lost, for what must not outlive it; a new one then."""
        return self._lease_token

    @property
    def instance_id(self) -> int:
        """The lease's id; 0 if static. RuntimeError before `start`."""
        if not self._started:
            raise RuntimeError("the runtime was not started")
        return 0 if self._registrations is None else self._registrations.lease

    def namespace(self, name: str) -> Namespace:
        return Namespace(self, name)

    def endpoint(self, name: str) -> Callable[[G], G]:
        """Declare that an async generator of (body, context) serves `namespace.component.endpoint`
        from `start` on. Each value it yields is a part of the answer. ValueError for no such name,
        or one declared before.
        """
        parsed = EndpointName.parse(name)
        if parsed in self._declared:
            raise ValueError(f"{name} is declared already")

        def declare(generator: G) -> G:
            self._declared[parsed] = _in_envelope(generator)
            return generator

        return declare

    async def client(
        self, name: str, static: Sequence[str] = (), selector: InstanceSelector | None = None
    ) -> Client:
        """A caller of `namespace.component.endpoint`, closed with the runtime. See
        Endpoint.client."""
        return await self.client_of(EndpointName.parse(name), static, selector)

    async def instances(self) -> list[Instance]:
        """All instances of all namespaces that are in the store now."""
        return await self.instances_below("")

    async def start(self) -> None:
        """Get a lease, listen, and serve what was declared. StoreError without a store in time."""
        if self._started:
            return
        await self._server.start(self._host, self._port)
        await self._plane.start(self._host)
        try:
            if self._store is not None:
                self._registrations = Registrations(self._store, self._lease_ttl_s)
                self._registrations.on_lost.append(self._on_lease_lost)
                await self._registrations.start(self._startup_timeout_s)
            self._started = True
            for name, handler in self._declared.items():
                await self.serve(name, handler)
        except BaseException:
            await self.shutdown(0.0)
            raise

    async def shutdown(self, drain_timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Be found no more, let answers end, then give the lease back and let go. Idempotent."""
        if self._nats is not None:
            await self._nats.remove_services()
        self._services.clear()
        for instance in self._served.values():
            if self._registrations is not None:
                try:
                    await self._registrations.unregister(*instance.key(self._generation))
                except StoreError as error:
                    log.warning("an instance stays until its lease ends", error=str(error))
            if self._over_nats and self._nats is not None:
                await self._nats.remove(instance.address)
            self._server.remove(path_of(instance.name, instance.instance_id))
        self._served.clear()
        if not await self._server.drain(drain_timeout_s):
            log.warning("answers are cut short", answers=self._server.in_flight)
        self.token.cancel()
        for client in self._clients:
            await client.close()
        self._clients.clear()
        await self._plane.close()
        await self._server.close()
        if self._registrations is not None:
            await self._registrations.close()
        if self._store is not None:
            await self._store.close()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT come, or `token` is cancelled. Then shut down."""
        loop = asyncio.get_running_loop()
        stop = self.token.child()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.cancel)
        try:
            await stop.wait()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def __aenter__(self) -> "DistributedRuntime":
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.shutdown(DRAIN_TIMEOUT_S if error is None else 0.0)

    async def instances_below(self, prefix: str) -> list[Instance]:
        """Of both generations of keys. What cannot be read is left out."""
        if self._store is None:
            return []
        found: dict[tuple[EndpointName, int], Instance] = {}
        for bucket in (SERVICES, INSTANCES):
            for entry in (await self._store.bucket(bucket).entries(prefix)).entries:
                try:
                    instance = decode_instance(entry)
                except ValueError:
                    continue
                found[instance.name, instance.instance_id] = instance
        return [found[key] for key in sorted(found)]

    async def serve(self, name: EndpointName, handler: Handler) -> Instance:
        """See Endpoint.serve: `handler` yields parts as they go over the wire."""
        id = self.instance_id
        path = path_of(name, id)
        address = f"{joined(self._host, self._server.port)}/{path}"
        instance = Instance(name, id, "tcp", address, "msgpack")
        if self._over_nats and self._nats is not None:
            instance = Instance(name, id, "nats_tcp", subject_of(name, id), "msgpack")
            service = await self.create_service(name.namespace, name.component)
            stats = await self._nats.serve_endpoint(
                service,
                f"{name.endpoint}-{id:x}",
                instance.address,
                lambda subject, data: self._server.take(path, data),
            )
            handler = stats.counted(handler)
        self._server.add(path, handler)
        self._served[name] = instance
        if self._registrations is not None:
            await self._registrations.register(*instance.key(self._generation), instance.value())
        return instance

    async def create_service(self, namespace: str, component: str) -> NatsService:
        """See Component.create_service."""
        if self._nats is None:
            raise ConfigError("a service of NATS needs the address of NATS", key="nats")
        place = namespace, component
        service = self._services.get(place)
        if service is None:
            service = NatsService(service_name(namespace, component))
            await self._nats.create_service(service)
            self._services[place] = service
        return service

    async def client_of(
        self, name: EndpointName, static: Sequence[str], selector: InstanceSelector | None
    ) -> Client:
        fixed = [
            Instance(name, number, "tcp", address, "msgpack")
            for number, address in enumerate(static)
        ]
        if self._store is not None and fixed:
            raise ValueError("a runtime with a store finds instances by itself")
        client = Client(name, self._plane, self._store, fixed, selector=selector)
        self._clients.append(client)
        try:
            async with asyncio.timeout(self._startup_timeout_s):
                await client.start()
        except TimeoutError:
            text = f"the store did not list instances of {name} in {self._startup_timeout_s:g} s"
            raise StoreError(text) from None
        return client

    def _on_lease_lost(self) -> None:
        self._lease_token.cancel()
        self._lease_token = self.token.child()


def _in_envelope(generator: Generator) -> Handler:
    async def handle(body: Any, context: RequestContext) -> AsyncIterator[object]:
        parts = generator(body, context)
        try:
            async for part in parts:
                yield annotated(part)
        finally:
            await end_parts(parts)

    return handle
