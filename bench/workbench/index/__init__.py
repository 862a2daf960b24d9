"""dynamo-router bench index: the index by itself, beside its rivals, and fed over NATS."""

from .workload import CacheEvents, Stored
