"""Every HTTP request is counted once, by the status that its client got, and has one line."""

import asyncio
import json
import re
from collections import Counter
from typing import Any

import grpc
from structlog.testing import capture_logs
from support.fake_engine import FakeEngine, fail
from support.polling import until
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.observability import ObservabilityConfig

ROUNDS = 100
NAME = "dynamo_router_http_requests_total"
SAMPLE = re.compile(NAME + r'\{model="(.*)",route="(.*)",status="(\d+)"\} (\S+)')
CHAT = "/v1/completions"
LEFT = 499


def request(body: Any, path: str = CHAT, *headers: str, version: str = "1.1") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "host: localhost", f"content-length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


def asking(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 2, **more}


GOOD = request(asking())
CLOSED = "connection: close"
WHOLE = [
    request(asking(), CHAT, CLOSED),
    request(asking(stream=True), CHAT, CLOSED),
    request(asking(), version="1.0"),
    GOOD * 3 + request(asking(), CHAT, CLOSED),
    request(b"{", CHAT, CLOSED),
    request(asking(max_tokens=-1), CHAT, CLOSED),
    request(asking(model="none"), CHAT, CLOSED),
    request(b"", "/nothing/of/a/client", CLOSED),
    b"DELETE /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    b"GET /v1/models/none HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    request(asking(user="u" * 5000), CHAT, CLOSED),
    b"what is this\r\n\r\n",
    GOOD + b"what is this\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
]
CUT = [GOOD[:1], GOOD[:20], GOOD[:-5]]
"""Clients that leave before all of their request is sent."""


async def send(port: int, data: bytes, *, leaves: bool = False) -> Counter[int]:
    """The statuses that come back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        if leaves:
            return Counter({LEFT: 1})
        async with asyncio.timeout(60):
            found = await reader.read()
        return Counter(map(int, re.findall(rb"HTTP/1\.1 (\d{3}) ", found)))
    finally:
        writer.close()
        await writer.wait_closed()


async def counted(served: Served) -> dict[tuple[str, str, int], int]:
    """By model, route and status, without the scrapes themselves."""
    async with served.session.get(f"http://{served.server.http_address}/metrics") as answer:
        page = await answer.text()
    found = {(m[1], m[2], int(m[3])): int(float(m[4])) for m in SAMPLE.finditer(page)}
    return {key: count for key, count in found.items() if key[1] != "/metrics"}


def by_status(found: dict[tuple[str, str, int], int]) -> Counter[int]:
    total: Counter[int] = Counter()
    for (_, _, status), count in found.items():
        total[status] += count
    return +total


async def test_no_request_is_unseen() -> None:
    limits = CallerLimits(max_body_bytes=4000)
    logged = ObservabilityConfig(access_log=True)
    async with openai_serving(FakeEngine(), peers=limits, observability=logged) as served:
        port = int(served.url.rpartition(":")[2])
        before = await counted(served)
        assert before["tiny", CHAT, 503] == 0 and not by_status(before)
        sent: Counter[int] = Counter()
        with capture_logs() as logs:
            for _ in range(ROUNDS):
                whole = await asyncio.gather(*(send(port, each) for each in WHOLE))
                cut = await asyncio.gather(*(send(port, each, leaves=True) for each in CUT))
                sent.update(status for found in (*whole, *cut) for status in found.elements())

            total = sent.total()

            async def settled() -> bool:
                return by_status(await counted(served)).total() >= total

            await until(settled)
            after = await counted(served)
    ended = [line for line in logs if line["event"] == "request ended"]
    lines = Counter(line["status"] for line in ended if line["route"] != "/metrics")
    assert sent.total() >= 2000 and {200, 400, 404, 405, 413, LEFT, 505} <= set(sent)
    assert by_status(after) == sent == lines
    assert {model for model, _, _ in after} <= {"", "tiny"}
    assert {route for _, route, _ in after if "client" in route or "none" in route} == set()


async def test_a_dead_fleet_and_failing_engines_are_seen() -> None:
    engine = FakeEngine(fail(grpc.StatusCode.INTERNAL, "broken"))
    logged = ObservabilityConfig(access_log=True)
    async with openai_serving(engine, observability=logged) as served:
        with capture_logs() as logs:
            headers = {
                "x-request-id": "a b\n".strip() + "!",
                "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
            }
            status, _ = await served.post(CHAT, asking(), headers=headers)
            await engine.stop()
            await until(lambda: not served.server.monitor.any_ready)
            gone, _ = await served.post(CHAT, asking())
        found = await counted(served)
    assert gone == 503 and status >= 500
    assert found["tiny", CHAT, 503] == 1 + (status == 503)
    first, last = (line for line in logs if line["event"] == "request ended")
    assert first["client_request_id"] == "a b!" and first["trace_id"] == "a" * 32
    assert (first["status"], first["model"], first["prompt_tokens"]) == (status, "tiny", 3)
    assert (last["status"], last["route"], last["model"]) == (503, CHAT, "tiny")
    assert last["error"]
