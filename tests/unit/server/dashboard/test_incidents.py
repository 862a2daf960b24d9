"""Incidents: what happened to workers and requests, once each, and alike ones together."""

from collections.abc import Callable
from contextvars import copy_context

import pytest
from support.polling import until

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import StatusCode
from dynamo_router.base.request_record import RequestRecord, set_record
from dynamo_router.server.dashboard.incidents import ALIKE_S, KEPT_INCIDENTS, Incidents
from dynamo_router.server.dispatch import OtherCall
from dynamo_router.workers.registry import WorkerRegistry, WorkerState


@pytest.fixture
def registry() -> WorkerRegistry:
    return WorkerRegistry()


@pytest.fixture
def incidents(registry: WorkerRegistry, clock: ManualClock) -> Incidents:
    return Incidents(registry, clock)


def texts(incidents: Incidents, after: int = 0) -> list[tuple[str | None, str, int]]:
    return [(each.worker, each.text, each.count) for each in incidents.since(after)]


def test_workers_that_come_change_and_leave(incidents: Incidents, registry: WorkerRegistry) -> None:
    registry.add(2**63)
    registry.add(2)
    incidents.compare_workers()
    assert texts(incidents) == [(str(2**63), "ready", 1), ("2", "ready", 1)]
    seen = incidents.last
    incidents.compare_workers()
    assert texts(incidents, seen) == []
    registry.set_state(2, WorkerState.UNHEALTHY, "5 failures in a row")
    registry.remove(2**63)
    incidents.compare_workers()
    assert texts(incidents, seen) == [
        ("2", "ready → unhealthy: 5 failures in a row", 1),
        (str(2**63), "left", 1),
    ]


def test_an_outage_has_a_beginning_and_a_last_error(
    incidents: Incidents, registry: WorkerRegistry, clock: ManualClock
) -> None:
    assert incidents.down_since == clock.now() and incidents.last_error is None
    registry.add(1)
    registry.add(2)
    incidents.compare_workers()
    assert incidents.down_since is None and incidents.last_error is None
    clock.advance(10)
    registry.set_state(1, WorkerState.UNHEALTHY, "gone")
    incidents.compare_workers()
    assert incidents.down_since is None
    clock.advance(10)
    registry.remove(2)
    incidents.compare_workers()
    began = clock.now()
    clock.advance(10)
    incidents.on_refused(StatusCode.UNAVAILABLE)
    incidents.compare_workers()
    assert incidents.down_since == began
    error = incidents.last_error
    assert error is not None and error.text == "refused: unavailable" and error.at == clock.now()
    registry.set_state(1, WorkerState.READY)
    incidents.compare_workers()
    assert incidents.down_since is None and incidents.last_error is error


def test_a_storm_of_the_same_is_one_line(incidents: Incidents, clock: ManualClock) -> None:
    for _ in range(100):
        incidents.on_refused(StatusCode.RESOURCE_EXHAUSTED)
        clock.advance(ALIKE_S / 2)
    incidents.on_refused(StatusCode.INVALID_ARGUMENT)
    assert texts(incidents) == [
        (None, "refused: resource exhausted", 100),
        (None, "refused: invalid argument", 1),
    ]
    # Who has read up to the 99th hears of the line again, as one with the same beginning.
    (again, _) = incidents.since(99)
    assert (again.number, again.number - again.count + 1) == (100, 1)
    clock.advance(2 * ALIKE_S)
    incidents.on_refused(StatusCode.INVALID_ARGUMENT)
    assert len(incidents.since(0)) == 3


def test_what_was_refused_is_named(incidents: Incidents) -> None:
    why = OtherCall("/a.Service/Embed", "r1", "no engine embeds")
    incidents.on_refused(StatusCode.UNIMPLEMENTED, why)
    over_http = copy_context()
    over_http.run(set_record, RequestRecord({}, route="/v1/rerank", request_id="r2"))
    other = OtherCall("/rerank", details="it has none")
    over_http.run(incidents.on_refused, StatusCode.UNIMPLEMENTED, other)
    assert [(each.text, each.request_id) for each in incidents.since(0)] == [
        ("/a.Service/Embed refused: unimplemented: no engine embeds", "r1"),
        ("/v1/rerank refused: unimplemented: it has none", "r2"),
    ]


def test_reasons_that_differ_push_nothing_out(
    incidents: Incidents, registry: WorkerRegistry, clock: ManualClock
) -> None:
    registry.add(7)
    incidents.compare_workers()
    for number in range(2 * KEPT_INCIDENTS):
        why = f"the request id 'r{number}' is in use"
        incidents.on_refused(StatusCode.ALREADY_EXISTS, OtherCall("/a.B/Generate", "", why))
        clock.advance(ALIKE_S / 2)
    refused = "/a.B/Generate refused: already exists: "
    last = f"the request id 'r{2 * KEPT_INCIDENTS - 1}' is in use"
    assert texts(incidents) == [
        ("7", "ready", 1),
        (None, refused + last, 2 * KEPT_INCIDENTS),
    ]


def test_they_are_bounded(incidents: Incidents, clock: ManualClock) -> None:
    for _ in range(2 * KEPT_INCIDENTS):
        incidents.on_refused(StatusCode.INTERNAL)
        clock.advance(2 * ALIKE_S)
    kept = incidents.since(0)
    assert len(kept) == KEPT_INCIDENTS and kept[-1].number == incidents.last


async def test_workers_are_compared_soon_after_a_change_and_no_more_once_closed(
    incidents: Incidents, registry: WorkerRegistry
) -> None:
    listeners: list[Callable[[], None]] = []
    incidents.watch(listeners)
    registry.add(7)
    listeners[0]()
    listeners[0]()
    await until(lambda: incidents.since(0))
    assert texts(incidents) == [("7", "ready", 1)]
    listeners[0]()
    incidents.close()
    assert listeners == [] and incidents._timer is None
