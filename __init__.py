"""A KV-cache-aware router for LLM inference fleets. Each folder here is one of its packages."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .router.config import KvRouterConfig
    from .router.kv_instance_selector import KvInstanceSelector
    from .router.kv_router import KvRouter

__all__ = ["KvInstanceSelector", "KvRouter", "KvRouterConfig"]

# Resolved on first use (PEP 562), so that a command which needs no router pays for none. Nothing
# is imported from here: pytest loads this file by itself where the checkout has another name.
_HOME = {
    "KvInstanceSelector": ".router.kv_instance_selector",
    "KvRouter": ".router.kv_router",
    "KvRouterConfig": ".router.config",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
