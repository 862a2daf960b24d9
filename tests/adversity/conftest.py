"""Fixtures that adversity tests share with others."""

from support.servers.jetstream import nats

__all__ = ["nats"]
