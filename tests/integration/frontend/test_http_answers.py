"""Every HTTP request is counted once, by the status that its client got, and has one line."""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from structlog.testing import capture_logs
from support.fake_engine import FakeEngine, answer, chunk, fail, hang
from support.polling import until
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.workers.trtllm_proto import pb

ROUNDS = 100
MIXES = int(os.environ.get("HTTP_MIXES", "3"))
"""How often the mix of all outcomes is sent; the environment may say more."""
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
    failed = [line for line in logs if line["event"] == "request failed"]
    assert [line["http_request_id"] for line in failed] == [first["request_id"]], "one line"


TOKEN = "client-token-0123456789"
AUTHORIZED = f"authorization: Bearer {TOKEN}"
HANGS, BUSY, BREAKS = 41, 42, 43
"""Lengths of answers by which an engine knows what to do."""
TURNS = [{"role": "user", "content": "Hello"}]
OF_ROUTES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/completions": ({"prompt": [1, 2, 3]}, "max_tokens"),
    "/v1/chat/completions": ({"messages": TURNS}, "max_tokens"),
    "/v1/responses": ({"input": "Hello"}, "max_output_tokens"),
    "/v1/messages": ({"messages": TURNS}, "max_tokens"),
    "/v1/embeddings": ({"input": "Hello"}, ""),
}
"""A request of each, and the field that says how long its answer is."""


async def scripted(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    """All that an engine does to a request."""
    if request.max_tokens == BUSY:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the engine's queue is full")
    if request.max_tokens == BREAKS:
        yield chunk(request, 11)
        await context.abort(grpc.StatusCode.INTERNAL, "broken")
    script = hang if request.max_tokens == HANGS else answer
    async for message in script(engine, request, context):
        yield message


async def embed(message: bytes, context: Any) -> bytes:
    return bytes(pb.EmbedResponse(embedding=[1.0, 2.0]).SerializeToString())


class Outcomes:
    """What clients saw, by route and status."""

    def __init__(self, served: Served, engine: FakeEngine) -> None:
        self._port = int(served.url.rpartition(":")[2])
        self._engine = engine
        self.seen: Counter[tuple[str, int]] = Counter()

    async def asks(self, route: str, sent: bytes) -> None:
        """One whole answer comes."""
        (status,) = (await send(self._port, sent)).elements()
        self.seen[route, status] += 1

    async def leaves(self, route: str, sent: bytes, *, after: str) -> None:
        """A client that closes its connection once an engine has its request, or after the head of
        an answer."""
        asked = len(self._engine.requests)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(sent)
            async with asyncio.timeout(60):
                if after == "request":
                    await until(lambda: len(self._engine.requests) > asked)
                    self.seen[route, LEFT] += 1
                else:
                    head = await reader.readuntil(b"\r\n\r\n")
                    self.seen[route, int(head.split()[1])] += 1
        finally:
            writer.close()
            await writer.wait_closed()


def every_outcome(route: str) -> list[bytes]:
    """Requests to a route that are answered, each in its own way."""
    body, length = OF_ROUTES[route]
    named = {"model": "tiny", **body}
    all_of = [
        named,
        {**named, "model": "none"},
        {**named, "user": "u" * 5000, "metadata": {"user_id": "u" * 5000}},
        {**named, "model": 3},
    ]
    if length:
        all_of[0][length] = 2
        all_of += [{**named, length: n, "stream": on}
                   for n in (2, BUSY, BREAKS) for on in (False, True)]  # fmt: skip
    if route in (CHAT, "/v1/chat/completions"):
        all_of += [{**named, "n": 30}]
    if route == "/v1/embeddings":
        all_of += [{**named, "input": ["a"] * 30}]
    sent = [request(each, route, CLOSED, AUTHORIZED) for each in all_of]
    sent += [request(b"{", route, CLOSED, AUTHORIZED), request(named, route, CLOSED)]
    return [*sent, f"DELETE {route} HTTP/1.1\r\nhost: a\r\n{CLOSED}\r\n\r\n".encode()]


async def test_counters_are_what_clients_saw_of_every_outcome(tmp_path: Path) -> None:
    """Of each route, by each status, over all the ways in which a request ends."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[caller]]\nname = "a"\ntoken = "{TOKEN}"\nroles = ["client", "metrics"]\n')
    tokens.chmod(0o600)
    limits = CallerLimits(max_body_bytes=4000, max_requests=40)
    engine = FakeEngine(scripted)
    engine.embed = embed
    async with openai_serving(engine, peers=limits, auth_tokens=str(tokens)) as served:
        served.session.headers["authorization"] = f"Bearer {TOKEN}"
        outcomes = Outcomes(served, engine)
        unknown = request(b"", "/v1/nothing", CLOSED, AUTHORIZED)
        for _ in range(MIXES):
            for route in OF_ROUTES:
                both = ((route, every_outcome(route)), ("unknown", [unknown, unknown]))
                whole = [(each, sent) for each, all_of in both for sent in all_of]
                await asyncio.gather(*(outcomes.asks(*each) for each in whole))
                body, length = OF_ROUTES[route]
                if length:
                    held = {"model": "tiny", **body, length: HANGS}
                    gone = request(held, route, AUTHORIZED)
                    await outcomes.leaves(route, gone, after="request")
                    begun = request({**held, length: 2, "stream": True}, route, AUTHORIZED)
                    await outcomes.leaves(route, begun, after="head")
        await engine.stop()
        await until(lambda: not served.server.monitor.any_ready)
        for route, (body, length) in OF_ROUTES.items():
            asked = {"model": "tiny", **body, **({length: 2} if length else {})}
            await outcomes.asks(route, request(asked, route, CLOSED, AUTHORIZED))
        total = outcomes.seen.total()

        async def settled() -> bool:
            return by_status(await counted(served)).total() >= total

        await until(settled)
        found: Counter[tuple[str, int]] = Counter()
        for (_, route, status), count in (await counted(served)).items():
            found[route, status] += count
    assert +found == outcomes.seen
    statuses = {200, 400, 401, 404, 405, 413, 429, LEFT, 500, 503}
    for route, (_, length) in OF_ROUTES.items():
        met = {status for of, status in outcomes.seen if of == route}
        assert met == (statuses if length else statuses - {LEFT, 500}), route
