"""Key-value stores of every kind; their servers are started once for each file of tests."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.polling import until
from support.servers.etcd import EtcdServer
from support.servers.jetstream import JetStreamServer
from support.servers.stores import KINDS, OpenStore, fresh_bucket, store_of

from dynamo_router.runtime.kv_stores import Bucket, KeyValueStore


@pytest.fixture
async def leaves_no_task() -> AsyncIterator[None]:
    """Fails the test if tasks of it go on. Files are not counted: gRPC keeps some for each loop."""
    before = len(asyncio.all_tasks())
    yield
    await until(lambda: len(asyncio.all_tasks()) <= before)


@pytest.fixture(scope="module", params=KINDS)
def open_store(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """Makes clients of one store, of each kind in turn."""
    with store_of(request.param) as opener:
        yield opener


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[KeyValueStore]:
    client = open_store()
    yield client
    await client.close()


@pytest.fixture
async def other(open_store: OpenStore) -> AsyncIterator[KeyValueStore]:
    """A second client of the same store, as another process has one."""
    client = open_store()
    yield client
    await client.close()


@pytest.fixture
def name() -> str:
    return fresh_bucket()


@pytest.fixture
def bucket(store: KeyValueStore, name: str) -> Bucket:
    return store.bucket(name)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd of this test alone, which it may stop."""
    with EtcdServer(tmp_path) as server:
        yield server


@pytest.fixture
def jetstream(tmp_path: Path) -> Iterator[JetStreamServer]:
    """The same of NATS with JetStream."""
    with JetStreamServer(tmp_path) as server:
        yield server
