"""How do processes find each other? Key-value stores with leases and watches."""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .etcd_config import EtcdConfig
from .file_store import FileStore
from .memory_store import MemoryStore
from .nats_address import NatsAddress
from .open_store import BACKENDS, open_store
from .store import (
    LEASE_TTL_S,
    MAX_KEYS,
    MAX_VALUE_BYTES,
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
    from .kubernetes import (
        KubernetesApi,
        KubernetesConfig,
        Listed,
        Outcome,
        PodIdentity,
        Reflector,
    )
    from .nats_connection import STREAM_IN_USE, NatsConnection, refusal
    from .nats_messages import Delivery, read_delivery
    from .nats_store import NatsStore

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
    "KubernetesApi",
    "KubernetesConfig",
    "LeaseLostError",
    "Listed",
    "Listing",
    "MAX_KEYS",
    "MAX_VALUE_BYTES",
    "MemoryStore",
    "NatsAddress",
    "NatsConnection",
    "NatsStore",
    "Outcome",
    "PodIdentity",
    "Reflector",
    "STREAM_IN_USE",
    "StoreError",
    "Watch",
    "open_store",
    "read_delivery",
    "refusal",
]

# The client of a store is imported by its first user.
__getattr__ = lazy_names(
    __name__,
    {
        "EtcdStore": ".etcd_store",
        "KubernetesApi": ".kubernetes",
        "KubernetesConfig": ".kubernetes",
        "Listed": ".kubernetes",
        "Outcome": ".kubernetes",
        "Reflector": ".kubernetes",
        "STREAM_IN_USE": ".nats_connection",
        "Delivery": ".nats_messages",
        "NatsConnection": ".nats_connection",
        "NatsStore": ".nats_store",
        "PodIdentity": ".kubernetes",
        "read_delivery": ".nats_messages",
        "refusal": ".nats_connection",
    },
)
