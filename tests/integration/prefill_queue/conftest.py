"""Fixtures of the prefill queue's tests."""

from support.servers.discovered_fleet import backend

__all__ = ["backend"]
