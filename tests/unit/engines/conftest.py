"""A publisher whose plane, clock and cache the test controls."""

from collections.abc import AsyncIterator

import pytest
from support.kv_events.publisher_scene import Scene, SwitchedPlane


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene(SwitchedPlane())
    await scene.start()
    yield scene
    await scene.publisher.close()
