"""Namespaces have components, components have endpoints, endpoints have instances."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..request_planes import Handler, NatsService
from .client import Client
from .instance_selector import InstanceSelector
from .instances import EndpointName, Instance, check_part


class ComponentRuntime(Protocol):
    """What the levels below need of the runtime."""

    async def instances_below(self, prefix: str) -> list[Instance]: ...
    async def serve(self, name: EndpointName, handler: Handler) -> Instance: ...
    async def create_service(self, namespace: str, component: str) -> NatsService: ...
    async def client_of(
        self, name: EndpointName, static: Sequence[str], selector: InstanceSelector | None
    ) -> Client: ...


@dataclass(frozen=True)
class Namespace:
    """What belongs together: no client finds an instance of another namespace by accident."""

    runtime: ComponentRuntime
    name: str

    def __post_init__(self) -> None:
        """ValueError for a text that is no name."""
        check_part(self.name)

    def component(self, name: str) -> "Component":
        return Component(self.runtime, self, name)

    async def instances(self) -> list[Instance]:
        """All instances of it that are in the store now."""
        return await self.runtime.instances_below(f"{self.name}/")


@dataclass(frozen=True)
class Component:
    """A kind of process."""

    runtime: ComponentRuntime
    namespace: Namespace
    name: str

    def __post_init__(self) -> None:
        check_part(self.name)

    def endpoint(self, name: str) -> "Endpoint":
        return Endpoint(self.runtime, EndpointName(self.namespace.name, self.name, name))

    async def create_service(self) -> NatsService:
        """Be there for NATS's service protocol (`$SRV.PING`, `INFO`, `STATS`), as the service
        `{namespace}_{component}`, until the runtime is shut down. Its endpoints over NATS are seen
        there, whose first `serve` does this too. ConfigError without NATS, StoreError if it is
        away."""
        return await self.runtime.create_service(self.namespace.name, self.name)

    async def instances(self) -> list[Instance]:
        return await self.runtime.instances_below(f"{self.namespace.name}/{self.name}/")


@dataclass(frozen=True)
class Endpoint:
    """Something that a component can be asked."""

    runtime: ComponentRuntime
    name: EndpointName

    async def instances(self) -> list[Instance]:
        return await self.runtime.instances_below(self.name.prefix)

    async def serve(self, handler: Handler) -> Instance:
        """Answer requests with `handler` until the runtime is shut down, and be found."""
        return await self.runtime.serve(self.name, handler)

    async def client(
        self, static: Sequence[str] = (), selector: InstanceSelector | None = None
    ) -> Client:
        """A caller, which knows the instances that are there. In a static runtime, these are at
        the addresses `static` (HOST:PORT/PATH). A `selector` gives it the mode kv."""
        return await self.runtime.client_of(self.name, static, selector)
