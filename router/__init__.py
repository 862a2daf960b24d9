"""Where a request goes: the library that a program embeds, without I/O."""

from typing import TYPE_CHECKING

from ..base.lazy_names import lazy_names

if TYPE_CHECKING:
    from .config import KvRouterConfig
    from .kv_router import KvRouter

__all__ = ["KvRouter", "KvRouterConfig"]

__getattr__ = lazy_names(__name__, {"KvRouter": ".kv_router", "KvRouterConfig": ".config"})
