"""Who the processes are, and how they find, listen to and call each other."""

from typing import TYPE_CHECKING

from ..base.lazy_names import lazy_names

if TYPE_CHECKING:
    from .components import Client, Component, DistributedRuntime, Endpoint, Namespace
    from .kv_stores import KeyValueStore

__all__ = ["Client", "Component", "DistributedRuntime", "Endpoint", "KeyValueStore", "Namespace"]

_COMPONENTS = ("Client", "Component", "DistributedRuntime", "Endpoint", "Namespace")
__getattr__ = lazy_names(
    __name__, dict.fromkeys(_COMPONENTS, ".components") | {"KeyValueStore": ".kv_stores"}
)
