"""What the way of KV events reads of a service's configuration, whichever service that is."""

from typing import Protocol

from ..workers.records import DiscoveryConfig, EventPlaneConfig


class IndexSettings(Protocol):
    """Of the decisions' configuration: what concerns the index."""

    @property
    def block_size(self) -> int:
        """Tokens of one block."""
        ...

    @property
    def router_replica_sync(self) -> bool: ...


class EventSettings(Protocol):
    """Names and meanings are those of the options of `serve`; times are in seconds."""

    @property
    def host(self) -> str: ...

    @property
    def router(self) -> IndexSettings: ...

    @property
    def event_sources(self) -> str: ...

    @property
    def nats(self) -> str | None: ...

    @property
    def starts_nats(self) -> bool:
        """Whether a NATS server is started where none is given or found."""
        ...

    @property
    def durable_kv_events(self) -> bool: ...

    @property
    def router_snapshot_threshold(self) -> int: ...

    @property
    def router_reset_states(self) -> bool: ...

    @property
    def router_id(self) -> str: ...

    @property
    def discovery(self) -> DiscoveryConfig: ...

    @property
    def backend(self) -> str: ...

    @property
    def plane(self) -> EventPlaneConfig: ...

    @property
    def namespace(self) -> str: ...

    @property
    def component(self) -> str: ...

    @property
    def endpoint(self) -> str: ...

    @property
    def unknown_worker_ttl_s(self) -> float: ...

    @property
    def index_snapshot(self) -> str | None: ...

    @property
    def index_snapshot_interval_s(self) -> float: ...
