"""Requests of all kinds behind one Envoy while endpoints and the picker fail: every one is
accounted for, and what a client gets is what an engine sent.

PICKER_REQUESTS=10000 is the long run, by hand; its outcomes are printed (`pytest -s`).
"""

import asyncio
import io
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import httpx
import pytest
from support.epp.engine import MODEL, Engine
from support.epp.gateway import Gateway
from support.free_port import free_port
from support.polling import until
from support.processes import Command, command, http_json

CHAT = "/v1/chat/completions"
COUNT = int(os.environ.get("PICKER_REQUESTS", "300"))
AT_ONCE = 12
KINDS = (
    *("h1", "h1 stream", "h2", "h2 stream") * 12,
    *("h1 300 kB", "h2 300 kB") * 3,
    *(f"leaves {point}" for point in range(7)),
)
HUGE_EVERY = 100
"""One request of so many has a body of 10 MB."""
DEADLINE_S = 120.0


class Run:
    """Sends requests; `outcomes` has one of each: ok, left, refused, cut."""

    def __init__(self, engines: list[Engine], gateway: Gateway) -> None:
        self._engines, self._gateway = engines, gateway
        self.outcomes: dict[int, str] = {}
        self.kinds: Counter[str] = Counter()
        self.disturbed = False
        """an endpoint or the picker is away: requests may be refused or cut"""
        self.troubled: list[str] = []
        """requests that were refused or cut while nothing was away"""
        self.last_refusal: tuple[int, bytes] | None = None
        self._session = aiohttp.ClientSession()
        self._http2 = httpx.AsyncClient(http1=False, http2=True, timeout=DEADLINE_S)

    async def close(self) -> None:
        await self._session.close()
        await self._http2.aclose()

    async def send(self, number: int) -> None:
        kind = KINDS[random.Random(number).randrange(len(KINDS))]
        text = f"{number} " + "some words " * 20
        more: dict[str, object] = {}
        if number % HUGE_EVERY == HUGE_EVERY // 2:
            kind, more["padding"] = "h1 10 MB", "x" * 10_000_000  # of a prompt: tokenized for long
        elif "300 kB" in kind:
            text += "more words " * 27_000
        self.kinds[kind] += 1
        if stream := "stream" in kind or "leaves" in kind:
            more["stream"] = True
        messages = [{"role": "user", "content": text}]
        data = json.dumps({"model": MODEL, "messages": messages, **more}).encode()
        disturbed = self.disturbed
        async with asyncio.timeout(DEADLINE_S):
            if kind.startswith("leaves"):
                outcome = await self._leave(data, int(kind.split()[1]))
            else:
                outcome = await self._ask(kind, data, stream=stream)
        assert number not in self.outcomes
        self.outcomes[number] = outcome
        if outcome in ("refused", "cut") and not (disturbed or self.disturbed):
            self.troubled.append(f"{number} {kind}: {outcome} {self.last_refusal}")

    async def _ask(self, kind: str, data: bytes, *, stream: bool) -> str:
        url = f"{self._gateway.url}{CHAT}"
        engine = self._engines[0]  # all answer the same
        whole = b"".join(engine.events(data)) if stream else engine.whole(data)
        try:
            if kind.startswith("h2"):
                found = await self._http2.post(url, content=data)
                status, body = found.status_code, found.content
            else:
                sent = io.BytesIO(data) if len(data) > 1 << 20 else data
                async with self._session.post(url, data=sent) as answer:
                    status, body = answer.status, await answer.read()
        except (aiohttp.ClientError, httpx.HTTPError):
            return "cut"
        if status >= 500:
            self.last_refusal = status, body[:200]
            return "refused"
        assert (status, body) == (200, whole), f"{kind}: not what an engine has sent"
        return "ok"

    async def _leave(self, data: bytes, point: int) -> str:
        """Leave in the head, before and in the body, behind it, in the answer's head, in the
        answer, at its end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.port)
        # A refusal ends the connection, so that what it lacks is not waited for.
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        ).encode()
        writer.write((head[:20], head, head + data[:40])[point] if point < 3 else head + data)
        try:
            await writer.drain()
            if point > 3:
                await reader.readuntil((b"HTTP/1.1", b"w0", b"[DONE]")[point - 4])
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # refused or cut: it would have left
        finally:
            writer.transport.abort()
        return "left"


@asynccontextmanager
async def picker_process(
    folder: Path, port: int, http: int, engines: list[Engine]
) -> AsyncIterator[Command]:
    words = ["epp", "--no-secure-serving", "--grpc-port", str(port), "--grpc-health-port", "0"]
    words += ["--http-port", str(http), "--block-size", "16", "--no-kv-events"]
    words += ["--pick-timeout-s", "60"]
    for engine in engines:
        words += ["--endpoint", engine.address]
    async with command(folder, *words, environ={"DYNAMO_ROUTER_EPP_LOG_LEVEL": "error"}) as picker:
        yield picker


async def test_every_request_is_accounted_for(tmp_path: Path) -> None:
    pytest.importorskip("envoy")
    port, http = free_port(), free_port()
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(Engine()) for _ in range(3)]
        gateway = Gateway(
            tmp_path / "envoy", f"127.0.0.1:{port}", [engine.address for engine in engines]
        )
        stack.callback(gateway.kill)
        await gateway.come_back()
        run = Run(engines, gateway)
        stack.push_async_callback(run.close)
        picker = await _started(stack, tmp_path / "first", port, http, engines)
        numbers = iter(range(COUNT))

        async def work(last: int) -> None:
            for number in numbers:
                await run.send(number)
                if number >= last:
                    return

        async def until_number(share: float) -> None:
            last = round(COUNT * share) - 1
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(work(last))

        await until_number(0.3)
        run.disturbed = True
        await engines[0].stop()
        await until_number(0.45)
        await engines[0].start()
        await until(lambda: _all_ready(http, 3), 60)
        run.disturbed = False
        await until_number(0.6)
        picker.send(signal.SIGSTOP)
        waiting = asyncio.create_task(until_number(0.65))
        await asyncio.wait([waiting], timeout=0.5)
        picker.send(signal.SIGCONT)
        await waiting
        run.disturbed = True
        killing = asyncio.create_task(until_number(0.75))
        await asyncio.wait([killing], timeout=0.05)
        await picker.stop(signal.SIGKILL)
        await killing
        picker = await _started(stack, tmp_path / "second", port, http, engines)
        await until(lambda: _answers(run), 60)
        run.disturbed = False
        await until_number(0.9)
        run.disturbed = True
        picker.send(signal.SIGTERM)
        ending = asyncio.create_task(until_number(0.95))
        assert await picker.ended() == 0
        await ending
        await _started(stack, tmp_path / "third", port, http, engines)
        await until(lambda: _answers(run), 60)
        run.disturbed = False
        await until_number(1.0)
        await until(lambda: _is_idle(http), 60)
        for row in (await http_json(f"127.0.0.1:{http}", "/workers"))["workers"]:
            assert (row["active_requests"], row["active_prefill_tokens"]) == (0, 0)
    outcomes = {number: outcome for number, outcome in run.outcomes.items() if number < COUNT}
    print("kinds", dict(sorted(run.kinds.items())), "outcomes", Counter(outcomes.values()))
    assert outcomes.keys() == set(range(COUNT))
    assert run.troubled == []
    got = {int(_number_of(each.body)) for engine in engines for each in engine.prompts}
    assert {number for number, outcome in outcomes.items() if outcome == "ok"} <= got


async def _started(
    stack: AsyncExitStack, folder: Path, port: int, http: int, engines: list[Engine]
) -> Command:
    picker = await stack.enter_async_context(picker_process(folder, port, http, engines))
    await picker.says("dynamo-router ready")
    await until(lambda: _all_ready(http, len(engines)), 60)
    return picker


async def _all_ready(http: int, count: int) -> bool:
    rows = (await http_json(f"127.0.0.1:{http}", "/workers"))["workers"]
    return [row["state"] for row in rows] == ["ready"] * count


async def _is_idle(http: int) -> bool:
    return bool((await http_json(f"127.0.0.1:{http}", "/health"))["in_flight"] == 0)


async def _answers(run: Run) -> bool:
    """Whether Envoy has found the picker again; requests behind COUNT are not counted."""
    number = COUNT + len(run.outcomes)
    await run.send(number)
    return run.outcomes[number] in ("ok", "left")


def _number_of(body: bytes) -> str:
    content: str = json.loads(body)["messages"][0]["content"]
    return content.partition(" ")[0]
