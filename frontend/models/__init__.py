"""Which models are there, and which workers answer for each? Found by their cards, or given.

Entered by the frontends.
"""

from .directory import OneModel
from .model_manager import ModelManager
from .model_pool import ModelPool
from .routes import ModelRoutes

__all__ = [
    "ModelManager",
    "ModelPool",
    "ModelRoutes",
    "OneModel",
]
