"""Which models are there, and which workers answer for each? Found by their cards, or given.

Entered by the frontends.
"""

from .model_manager import ModelManager
from .model_pool import AdapterPool, ModelPool
from .routes import ModelRoutes, OneModel, in_order
