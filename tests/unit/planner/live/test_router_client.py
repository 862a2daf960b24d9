"""RouterClient against a router that answers oddly: what cannot be read is no data."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from dynamo_router.planner.live.router_client import RouterClient, queued_in

METRIC = "dynamo_router_queue_pending_requests"
PAGE = f"# TYPE {METRIC} gauge\n{METRIC} 3.0\n"


@pytest.mark.parametrize(
    ("page", "queued"),
    [
        (PAGE, 3.0),
        (f'# TYPE {METRIC} gauge\n{METRIC}{{pool="a"}} 1\n{METRIC}{{pool="b"}} 2\n', 3.0),
        (f"{METRIC} NaN\n", None),
        (f"{METRIC} +Inf\n", None),
        (f"{METRIC} -1\n", None),
        ("other 3\n", None),
        ("", None),
        (f"{METRIC}{{ 3\n", None),
        (f"{METRIC} three\n", None),
    ],
)
def test_a_queue_that_is_no_number_is_no_data(page: str, queued: float | None) -> None:
    assert queued_in(page) == queued


class Router:
    """Answers with what is set."""

    def __init__(self) -> None:
        row = {"worker_id": 7, "dp_rank": 0, "state": "ready", "active_requests": 1}
        other = {**row, "dp_rank": 1, "state": "draining", "active_blocks": 4}
        self.workers: Any = {"workers": [row, other]}
        self.metrics = PAGE
        self.process, self.lines = "p1", 0
        self.record = True
        self.drains: list[tuple[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(text=self.metrics)
        if request.path == "/workers":
            return web.json_response(self.workers)
        if request.path.endswith("/drain"):
            self.drains.append((request.path, request.headers["Authorization"]))
            if "/9/" in request.path:
                return web.json_response({"error": "there is no worker '9'"}, status=404)
            return web.json_response({"state": "draining", "in_flight": 2, "drained": False})
        if not self.record:
            return web.json_response({"error": "no requests are recorded here"}, status=404)
        since = int(request.query["since"])
        lines = [
            {
                "number": number,
                "model": "tiny" if number % 2 else "big",
                "line": {"timestamp": number, "input_length": number, "output_length": 1},
            }
            for number in range(since + 1, min(self.lines, since + 2) + 1)
        ]
        page = {
            "process": self.process, "last": self.lines, "missed": 0, "lines": lines,
            "headers": {"tiny": {"block_size": 64, "record": "r"}},
        }  # fmt: skip
        return web.Response(body=msgspec.json.encode(page))


@pytest.fixture
async def router() -> Router:
    return Router()


@pytest.fixture
async def client(router: Router) -> AsyncIterator[RouterClient]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", router.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made = RouterClient(f"http://127.0.0.1:{runner.addresses[0][1]}", "secret", None, "tiny")
    yield made
    await made.close()
    await runner.cleanup()


async def test_ranks_are_taken_together(client: RouterClient) -> None:
    seen = await client.look()
    assert seen is not None
    (row,) = seen.workers.values()
    assert (row.state, row.active_requests, row.active_blocks) == ("draining", 2, 4)
    assert seen.queued == 3.0


async def test_requests_from_the_first_look_on_of_our_model(
    client: RouterClient, router: Router
) -> None:
    router.lines = 4
    first = await client.look()
    assert first is not None and first.requests == ()
    router.lines = 9  # more than a page
    seen = await client.look()
    assert seen is not None and seen.requests is not None
    assert [each.input_length for each in seen.requests] == [5, 7, 9]
    assert (seen.block_size, seen.record) == (64, "r")


async def test_a_router_that_began_anew_is_read_from_its_begin(
    client: RouterClient, router: Router
) -> None:
    router.lines = 4
    await client.look()
    router.process, router.lines = "p2", 3
    seen = await client.look()
    assert seen is not None and seen.requests is not None
    assert [each.input_length for each in seen.requests] == [1, 3]


async def test_without_a_record_there_is_no_request_to_know_of(
    client: RouterClient, router: Router
) -> None:
    router.record = False
    seen = await client.look()
    assert seen is not None
    assert (seen.requests, seen.block_size) == (None, None)


@pytest.mark.parametrize(
    "workers", [{"workers": [{"worker_id": "7"}]}, {"workers": None}, [], {"workers": [{}]}]
)
async def test_workers_that_make_no_sense_are_no_data(
    client: RouterClient, router: Router, workers: Any
) -> None:
    router.workers = workers
    with capture_logs() as logs:
        assert await client.look() is None
        assert await client.look() is None
        router.workers = {"workers": []}
        assert await client.look() is not None
    assert [line["event"] for line in logs] == ["no data from a router", "a router answers again"]


async def test_a_drain_says_what_is_left(client: RouterClient, router: Router) -> None:
    assert await client.drain(7) == 2
    assert await client.drain(9) == 0  # this router has no such worker
    assert router.drains[0] == ("/workers/7/drain", "Bearer secret")


async def test_no_router_is_no_data() -> None:
    client = RouterClient("http://127.0.0.1:1", None, None, None)
    assert await client.look() is None
    assert await client.drain(7) is None
    await client.close()
    await client.close()
