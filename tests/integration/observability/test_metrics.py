"""/metrics of a served fleet, read as Prometheus reads it."""

import asyncio
from typing import Any

import grpc
import pytest
from msgspec.structs import replace
from support.fake_engine import FakeEngine, fail, prompt, stall
from support.observability.exposition import families, values_of
from support.polling import until
from support.serving import BLOCK, Ports, serving

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.services import state_routes
from dynamo_router.transport.http1 import HttpCall


async def ended(ports: Ports, count: int) -> dict[str, float]:
    """The metrics once so many requests have ended."""
    page: dict[str, float] = {}

    def total() -> float:
        return sum(v for k, v in page.items() if k.startswith(ENDED))

    while total() < count:
        page = await ports.metrics()
    return page


FORMS = {
    "plain": {"Accept-Encoding": "identity"},
    "packed": {"Accept-Encoding": "gzip"},  # unpacked by the client
    "openmetrics": {"Accept": "application/openmetrics-text;version=1.0.0"},
}
ENDED = "dynamo_component_router_requests_total{"


async def test_a_request_is_seen_from_its_arrival_to_its_end() -> None:
    async with serving(FakeEngine(worker_id=7)) as ports:
        await ports.answers(prompt("streamed"))
        whole = prompt("whole")
        whole.streaming = False
        await ports.answers(whole)
        page = await ended(ports, 2)
    assert page["dynamo_router_request_duration_seconds_count"] == 2
    assert page["dynamo_router_queue_wait_seconds_count"] == 2
    assert page["dynamo_component_router_time_to_first_token_seconds_count"] == 1
    assert page['dynamo_router_worker_requests_total{worker_id="7"}'] == 2
    assert page['dynamo_router_worker_time_to_first_token_seconds_count{worker_id="7"}'] == 1
    assert page['dynamo_router_worker_request_duration_seconds_count{worker_id="7"}'] == 2
    longest = page["dynamo_router_request_duration_seconds_sum"]
    assert 0 < page['dynamo_router_worker_request_duration_seconds_sum{worker_id="7"}'] <= longest
    state = 'dynamo_router_worker_state{reason="",state="ready",worker_id="7"}'
    assert page[state] == 1


async def test_the_bad_one_of_a_fleet_can_be_found() -> None:
    bad = FakeEngine(fail(grpc.StatusCode.INTERNAL, "broken"), worker_id=1)
    async with serving(bad, FakeEngine(worker_id=2)) as ports:
        for number in range(10):
            await ports.answers(prompt(f"r{number}"))
        page = await ended(ports, 10)
    failed = page['dynamo_router_worker_errors_total{cause="internal",worker_id="1"}']
    assert failed >= 1
    assert page['dynamo_router_worker_requests_total{worker_id="1"}'] == failed
    assert page['dynamo_router_worker_request_duration_seconds_count{worker_id="1"}'] == 0
    assert page['dynamo_router_worker_request_duration_seconds_count{worker_id="2"}'] == 10


@pytest.mark.parametrize("events", [True, False])
async def test_prometheus_reads_every_format(events: bool) -> None:
    router = KvRouterConfig(block_size=BLOCK, use_kv_events=events)
    async with serving(FakeEngine(), router=router) as ports:
        await ports.answers(prompt())
        await until(lambda: not ports.server.dispatcher.in_flight)
        pages = {
            form: (await ports.http("GET", "/metrics", headers=headers))[1]
            for form, headers in FORMS.items()
        }
    plain, packed = families(pages["plain"]), families(pages["packed"])
    strict = families(pages["openmetrics"], openmetrics=True)
    assert plain.keys() == strict.keys() == packed.keys()
    assert {f.name: f.type for f in plain.values()} == {f.name: f.type for f in strict.values()}
    for name in ("dynamo_router_loop_lag_seconds", "process_open_fds", "dynamo_router_build_info"):
        assert name in plain
    assert values_of(plain["dynamo_router_log_lines_lost"], "reason").keys() == {
        "rate_limit", "slow_reader",
    }  # fmt: skip


async def test_predictions_that_expire_or_find_no_room_are_counted() -> None:
    router = KvRouterConfig(
        block_size=BLOCK, use_kv_events=False, router_ttl_secs=0.2, router_max_tree_size=4
    )
    blocks, expired, pruned = (
        f"dynamo_router_{name}"
        for name in ("index_predicted_blocks", "predictions_expired_total",
                     "predictions_pruned_total")
    )  # fmt: skip
    async with serving(FakeEngine(), router=router) as ports:
        page = await ports.metrics()
        assert page[blocks] == page[expired] == page[pruned] == 0
        await ports.answers(prompt("long", 6 * BLOCK))
        page = await ports.metrics()
        assert page[pruned] == 3 and page[blocks] + page[expired] == 3

        async def forgotten() -> bool:
            await ports.answers(prompt("short", 1))  # a decision forgets what is too old
            return (await ports.metrics())[expired] == 3

        await until(forgotten)
        assert (await ports.metrics())[blocks] == 0


async def test_what_callers_have_open_is_told() -> None:
    async with serving(FakeEngine(stall)) as ports:
        call = asyncio.create_task(ports.answers(prompt()))
        await until(lambda: ports.server.dispatcher.in_flight == 1)
        page = await ports.metrics()
        assert page['dynamo_router_open_calls{kind="requests"}'] == 1
        assert page['dynamo_router_open_calls{kind="questions"}'] == 0
        assert page["dynamo_router_http_connections"] == 1  # this one
        call.cancel()
        await asyncio.wait([call])
        await until(lambda: not ports.server.dispatcher.in_flight)
        await ports.shows('dynamo_router_open_calls{kind="requests"}', 0)


async def test_a_long_page_is_written_in_pieces_and_arrives_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[int] = []
    answer = state_routes.MetricsRoute._on_metrics

    async def noted(route: state_routes.MetricsRoute, call: HttpCall) -> None:
        async def send(message: dict[str, Any]) -> None:
            pieces.append(len(message.get("body", b"")))
            await call.send(message)

        await answer(route, replace(call, send=send))

    monkeypatch.setattr(state_routes, "WRITTEN_AT_ONCE", 1000)
    monkeypatch.setattr(state_routes.MetricsRoute, "_on_metrics", noted)
    async with serving(FakeEngine()) as ports:
        status, text = await ports.http("GET", "/metrics", headers=FORMS["plain"])
        assert status == 200 and sum(pieces) == len(text.encode())
        assert max(pieces) <= 1000 < sum(pieces)
        assert "# HELP" in text and text.endswith("\n")
        assert await ports.http("HEAD", "/metrics") == (200, "")
