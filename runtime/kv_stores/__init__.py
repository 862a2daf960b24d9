"""How do processes find each other? Key-value stores with leases and watches."""

from typing import TYPE_CHECKING, Any

from .etcd_config import EtcdConfig
from .file_store import FileStore
from .memory_store import MemoryStore
from .nats_connection import NatsAddress, NatsConnection
from .nats_messages import Delivery, read_delivery
from .nats_store import NatsStore
from .open_store import BACKENDS, open_store
from .store import (
    LEASE_TTL_S,
    Bucket,
    Change,
    Deleted,
    Entry,
    KeyValueStore,
    LeaseLostError,
    Listing,
    StoreError,
    Watch,
)

if TYPE_CHECKING:
    from .etcd_store import EtcdStore

__all__ = [
    "BACKENDS",
    "LEASE_TTL_S",
    "Bucket",
    "Change",
    "Deleted",
    "Delivery",
    "Entry",
    "EtcdConfig",
    "EtcdStore",
    "FileStore",
    "KeyValueStore",
    "LeaseLostError",
    "Listing",
    "MemoryStore",
    "NatsAddress",
    "NatsConnection",
    "NatsStore",
    "StoreError",
    "Watch",
    "open_store",
    "read_delivery",
]


def __getattr__(name: str) -> Any:
    """Resolved on first use (PEP 562): the client of etcd is for whoever uses etcd."""
    if name == "EtcdStore":
        from .etcd_store import EtcdStore

        return EtcdStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
