"""The index that most tests of this folder feed."""

from collections.abc import Iterator

import pytest

from dynamo_router.indexer.event_index.actor import EventIndex


@pytest.fixture
def index() -> Iterator[EventIndex]:
    made = EventIndex()
    yield made
    made.close()
