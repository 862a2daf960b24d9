"""Which models are there, and which workers answer for each? Found by their cards, or given.

Entered by the frontends.
"""

from .directory import OneModel
from .model_manager import ModelManager
from .model_pool import ModelPool, Shared
from .model_watcher import ModelWatcher
from .routes import ModelRoutes
from .worker_sets import NamespaceFilter

__all__ = [
    "ModelManager",
    "ModelPool",
    "ModelRoutes",
    "ModelWatcher",
    "NamespaceFilter",
    "OneModel",
    "Shared",
]
