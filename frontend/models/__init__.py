"""Which models are there, and which workers answer for each? Found by their cards, or given.

Entered by the frontends.
"""

from .model_manager import ModelManager
from .model_pool import ModelPool, Shared
from .model_watcher import ModelWatcher
from .pool_dashboard import PoolDashboard
from .routes import ModelRoutes, OneModel
from .worker_sets import NamespaceFilter

__all__ = [
    "ModelManager",
    "ModelPool",
    "ModelRoutes",
    "ModelWatcher",
    "NamespaceFilter",
    "OneModel",
    "PoolDashboard",
    "Shared",
]
