"""Key-value stores of every kind, each on the real thing, for tests that hold for all."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TypeAlias

from support.servers.etcd import EtcdServer
from support.servers.jetstream import JetStreamServer

from dynamo_router.runtime.kv_stores import (
    EtcdConfig,
    EtcdStore,
    FileStore,
    KeyValueStore,
    MemoryStore,
    NatsAddress,
    NatsStore,
)

KINDS = ("memory", "file", "file-polled", "etcd", "nats")
_numbers = count()

OpenStore: TypeAlias = Callable[[], KeyValueStore]
"""Makes one more client of the store."""


def fresh_bucket() -> str:
    """The name of a bucket that no other test has used."""
    return f"v1/test_{next(_numbers)}"


@contextmanager
def store_of(kind: str) -> Iterator[OpenStore]:
    """The store behind a kind's name, with the server it needs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="store-")))
        if kind == "etcd":
            etcd = stack.enter_context(EtcdServer(folder))
            yield lambda: EtcdStore(EtcdConfig((etcd.url,)))
        elif kind == "nats":
            nats = stack.enter_context(JetStreamServer(folder))
            yield lambda: NatsStore(NatsAddress(nats.url))
        elif kind.startswith("file"):
            yield lambda: FileStore(folder, inotify=kind == "file")
        else:
            memory = MemoryStore()
            yield lambda: memory
