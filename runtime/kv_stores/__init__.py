"""How do processes find each other? Key-value stores with leases and watches."""

from .delivery import Delivery, read_delivery
from .etcd_config import EtcdConfig
from .etcd_store import EtcdStore
from .file_store import FileStore
from .memory_store import MemoryStore
from .nats_connection import NatsAddress, NatsConnection
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
