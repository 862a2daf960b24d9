"""Frontend: OpenAI's HTTP API, answered by the fleet."""

from .config import FrontendConfig, ServeFrontendConfig

__all__ = ["FrontendConfig", "ServeFrontendConfig"]
