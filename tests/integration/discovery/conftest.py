"""What tests of stores and their fleets share."""

from support.servers.discovered_fleet import backend

__all__ = ["backend"]
