"""Where a request goes: the library that a program embeds, without I/O."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import KvRouterConfig
    from .kv_router import KvRouter

__all__ = ["KvRouter", "KvRouterConfig"]

_HOME = {"KvRouter": ".kv_router", "KvRouterConfig": ".config"}


def __getattr__(name: str) -> Any:
    """Resolved on first use (PEP 562): settings are read without numpy."""
    if name in _HOME:
        return getattr(import_module(_HOME[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
