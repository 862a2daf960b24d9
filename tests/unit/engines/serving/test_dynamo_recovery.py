"""What a worker of Dynamo's answers to a router that missed events, and has published none."""

from typing import Any

import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.engines.publisher import KvEventPublisher
from dynamo_router.engines.serving.dynamo_recovery import EventRecovery, RankEvents
from dynamo_router.runtime.event_planes import LocalPlane


@pytest.mark.parametrize(
    ("first_event_id", "answer"),
    [
        (0, {"Error": "no event was published yet"}),
        (1, {"TreeDump": {"events": [], "last_event_id": 0, "reset_scope": "all"}}),
    ],
)
async def test_no_number_is_below_zero(first_event_id: int, answer: Any) -> None:
    publisher = KvEventPublisher(
        LocalPlane(),
        worker_id=7,
        namespace="n",
        component="c",
        endpoint="e",
        snapshot=lambda: [],
        clock=ManualClock(),
        start_event_id=first_event_id,
        heartbeat_s=0,
    )
    await publisher.start()
    try:
        recovery = EventRecovery(7, 0, RankEvents(publisher, lambda: []))
        body = {"worker_id": 7, "dp_rank": 0, "start_event_id": None}
        context: Any = None  # not looked at
        assert [said async for said in recovery.answer(body, context)] == [answer]
    finally:
        await publisher.close()
