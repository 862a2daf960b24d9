"""What runs long computations beside the event loop, for the tests of texts."""

from collections.abc import Iterator

import pytest

from dynamo_router.process.off_loop import OffLoop


@pytest.fixture(scope="module")
def off_loop() -> Iterator[OffLoop]:
    made = OffLoop()
    yield made
    made.close()
