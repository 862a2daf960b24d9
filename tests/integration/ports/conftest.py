"""Tests that give events to the index itself: it believes them however long the test takes."""

from typing import Any

import pytest

from dynamo_router.kv_events.event_sources import EventSources


def _undecided(*states: Any) -> None: ...


@pytest.fixture(autouse=True)
def sources_stay_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker publishes here: at the next look its cache would be predicted instead."""
    monkeypatch.setattr(EventSources, "look", _undecided)
