"""dynamo-router bench index: the index by itself, beside its rivals, and at the end of a wire."""

from .workload import CacheEvents, Stored

__all__ = ["CacheEvents", "Stored"]
