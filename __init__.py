"""A KV-cache-aware router for LLM inference fleets. Each folder here is one of its packages."""

from typing import TYPE_CHECKING

from .base.lazy_names import lazy_names

if TYPE_CHECKING:
    from .router.config import KvRouterConfig
    from .router.kv_instance_selector import KvInstanceSelector
    from .router.kv_router import KvRouter

__all__ = ["KvInstanceSelector", "KvRouter", "KvRouterConfig"]

__getattr__ = lazy_names(
    __name__,
    {
        "KvInstanceSelector": ".router.kv_instance_selector",
        "KvRouter": ".router.kv_router",
        "KvRouterConfig": ".router.config",
    },
)
