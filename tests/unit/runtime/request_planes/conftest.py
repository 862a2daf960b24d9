"""A client of Dynamo's request plane over TCP."""

from collections.abc import AsyncIterator

import pytest

from dynamo_router.runtime.request_planes import RequestClient


@pytest.fixture
async def client() -> AsyncIterator[RequestClient]:
    running = RequestClient()
    await running.start()
    yield running
    await running.close()
