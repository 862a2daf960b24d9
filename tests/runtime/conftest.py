"""What the tests of the ground floor share: a real server, waiting by condition, leak checks."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from dynamo_router.runtime.embedded_nats import EmbeddedNats

Eventually = Callable[[Callable[[], object]], Awaitable[None]]


async def _eventually(condition: Callable[[], object]) -> None:
    """Until `condition` holds; fails after a time that only a hang can take."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.002)


@pytest.fixture
def eventually() -> Eventually:
    return _eventually


@pytest.fixture
async def nats() -> AsyncIterator[EmbeddedNats]:
    """A nats-server on a free port; a test may kill it and start it again."""
    server = EmbeddedNats()
    await server.start()
    yield server
    await server.stop()


def _held() -> tuple[int, int, list[str]]:
    files = len(os.listdir("/proc/self/fd"))
    return files, len(asyncio.all_tasks()), _children()


def _children() -> list[str]:
    return [
        child
        for thread in Path("/proc/self/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]


@pytest.fixture(scope="session", autouse=True)
def uvloop_has_run() -> None:
    """uvloop opens a pipe on its first run and keeps it: let that be before we count."""
    uvloop.run(asyncio.sleep(0))


@pytest.fixture
async def leaves_nothing(eventually: Eventually) -> AsyncIterator[None]:
    """Fails the test if it ends with more files, tasks or child processes than it began."""
    before = _held()
    yield
    # A closed socket leaves the event loop one turn later.
    await eventually(lambda: all(now <= then for now, then in zip(_held(), before, strict=True)))
