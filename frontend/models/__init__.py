"""Which models are there, and which workers answer for each? Found by their cards, or given.

Entered by the frontends.
"""

from .model_manager import ModelManager
from .routes import ModelRoutes, OneModel
