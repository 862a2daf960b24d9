"""What unit tests share: a clock that is set, a real server, and leak checks."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop
from support.free_port import free_port
from support.polling import until

from dynamo_router.base.clock import ManualClock
from dynamo_router.runtime.event_planes.embedded_nats import EmbeddedNats


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def nats() -> AsyncIterator[EmbeddedNats]:
    """A nats-server; a test may kill it and start it again."""
    async with EmbeddedNats(free_port()) as server:
        yield server


def _held() -> tuple[int, int, list[str]]:
    files = len(os.listdir("/proc/self/fd"))
    return files, len(asyncio.all_tasks()), _children()


def _children() -> list[str]:
    found: list[str] = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            found += (thread / "children").read_text().split()
    return found


@pytest.fixture(scope="session", autouse=True)
def uvloop_has_run() -> None:
    """uvloop opens a pipe on its first run and keeps it: let that be before we count."""
    uvloop.run(asyncio.sleep(0))


@pytest.fixture
async def leaves_nothing() -> AsyncIterator[None]:
    """Fails the test if it ends with more files, tasks or child processes than it began."""
    before = _held()
    yield
    # A closed socket leaves the event loop one turn later.
    await until(lambda: all(now <= then for now, then in zip(_held(), before, strict=True)))
