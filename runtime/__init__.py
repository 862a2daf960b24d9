"""Who the processes are, and how they find, hear and call each other."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .components import Client, Component, DistributedRuntime, Endpoint, Namespace
    from .kv_stores import KeyValueStore

# Resolved on first use (PEP 562): whoever needs a noun of this floor pays for no network.
_HOME = {
    "Client": ".components",
    "Component": ".components",
    "DistributedRuntime": ".components",
    "Endpoint": ".components",
    "KeyValueStore": ".kv_stores",
    "Namespace": ".components",
}
__all__ = ["Client", "Component", "DistributedRuntime", "Endpoint", "KeyValueStore", "Namespace"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
