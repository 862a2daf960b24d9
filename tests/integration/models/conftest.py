"""What tests of models found by their cards share."""

from support.servers.discovered_fleet import backend

__all__ = ["backend"]
