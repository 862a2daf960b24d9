"""Fixtures of the prefill queue's tests."""

from support.servers.discovered_fleet import backend
from support.servers.jetstream import nats

__all__ = ["backend", "nats"]
