"""python tests/picker_latency: what a picker adds to a request through Envoy, and its CPU time.

Three ways take turns within each round, in an order drawn anew: Envoy alone; Envoy and a picker
that answers each message at once, reading no body (what external processing costs by itself); Envoy
and `dynamo-router epp`. Engines, pickers and gateways are processes of their own.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.epp.engine import MODEL, Engine  # noqa: E402
from support.epp.gateway import PLAIN, Gateway  # noqa: E402
from support.free_port import free_port  # noqa: E402
from support.processes import command, http_json  # noqa: E402

from dynamo_router.frontend.epp.exchange import Exchange, RequestEnded  # noqa: E402
from dynamo_router.frontend.epp.picker import PATH  # noqa: E402
from dynamo_router.server.call_limits import PROCESSOR  # noqa: E402
from dynamo_router.server.services import GrpcServer  # noqa: E402
from dynamo_router.transport.grpc_methods import Method  # noqa: E402

CHAT = "/v1/chat/completions"
TURN_WORDS, TURN_TOKENS = 340, 1000
"""By the tokenizer that comes along."""
WARM_UP = 10
TICKS = os.sysconf("SC_CLK_TCK")


# The processes beside the picker


async def serve_engines(count: int) -> None:
    """Print their addresses; streams of four events each."""
    engines = [Engine() for _ in range(count)]
    for engine in engines:
        await engine.start()
    print(*(engine.address for engine in engines), flush=True)
    while True:
        await asyncio.sleep(1)
        for engine in engines:
            engine.got.clear()


async def serve_null_picker(endpoint: str) -> None:
    """Print the port. Each request goes to the one endpoint, and nothing of it is read."""

    async def process(messages: AsyncIterator[bytes], call: Any) -> None:
        exchange = Exchange()
        async for message in messages:
            step = exchange.receive(message)
            for answer in step.answers:
                await call.write(answer)
            if isinstance(step.event, RequestEnded):
                for answer in exchange.route(endpoint, headers={}, remove=(), body=None):
                    await call.write(answer)

    methods = {PROCESSOR: {PATH: Method(process, streams=True)}}
    server = GrpcServer(
        methods, ready=(PROCESSOR,), host="127.0.0.1", port=0, is_ready=lambda: True
    )
    await server.listen()
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


@asynccontextmanager
async def child(*words: str) -> AsyncIterator[tuple[int, list[str]]]:
    """One of the two: its pid, and what it prints first."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, *words, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield process.pid, (await process.stdout.readline()).decode().split()
    finally:
        process.kill()
        await process.wait()


# What is asked, and how


class Requests:
    """Conversations whose last turn is new each time, behind `history` tokens that are not."""

    def __init__(self, history: int) -> None:
        turns = range(history // TURN_TOKENS)
        self._turns = [
            {"role": "assistant" if turn % 2 else "user", "content": self._text(f"turn {turn}")}
            for turn in turns
        ]

    def body(self, number: int) -> bytes:
        last = {"role": "user", "content": self._text(f"request {number}")}
        messages = [*self._turns, last]
        return json.dumps({"model": MODEL, "messages": messages, "stream": True}).encode()

    def _text(self, seed: str) -> str:
        rng = random.Random(seed)
        return " ".join(rng.choice(WORDS) for _ in range(TURN_WORDS))


_LETTERS = random.Random(0)
WORDS = ["".join(_LETTERS.choices("etaoinshrdlu", k=_LETTERS.randint(2, 6))) for _ in range(3000)]


class Client:
    """One connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, gateway: Gateway) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", gateway.port))

    async def ask(self, path: str, body: bytes) -> tuple[float, float]:
        """Seconds until the first byte of an answer's body, and until the last."""
        began, reader = time.perf_counter(), self._reader
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200") and b"chunked" in answer, answer
        first = 0.0
        while size := int(await reader.readline(), 16):
            first = first or time.perf_counter() - began
            await reader.readexactly(size + 2)
        await reader.readline()
        return first, time.perf_counter() - began


def cpu_s(pid: int) -> float:
    """Of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def measure(history: int, rounds: int) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, endpoints = await stack.enter_async_context(child("engines"))
        null, (null_port,) = await stack.enter_async_context(child("null", endpoints[0]))
        port, http = free_port(), free_port()
        words = ["epp", "--no-secure-serving", "--grpc-port", str(port), "--http-port", str(http)]
        words += ["--grpc-health-port", "0"]
        for endpoint in endpoints:
            words += ["--endpoint", endpoint]
        picker = await stack.enter_async_context(command(folder / "picker", *words))
        await picker.says("dynamo-router ready")
        while (await http_json(f"127.0.0.1:{http}", "/health"))["workers"].get("ready", 0) < 2:
            await asyncio.sleep(0.1)
        gateways = []
        for name, at in (("ours", str(port)), ("null", null_port)):
            gateway = Gateway(folder / name, f"127.0.0.1:{at}", endpoints)
            stack.callback(gateway.kill)
            await gateway.come_back()
            gateways.append(gateway)
        ways = {
            "envoy": (await Client.open(gateways[0]), f"{PLAIN}{CHAT}"),
            "null picker": (await Client.open(gateways[1]), CHAT),
            "picker": (await Client.open(gateways[0]), CHAT),
        }
        requests, pids = Requests(history), {"null picker": null, "picker": picker.pid}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        before, rng = dict[str, float](), random.Random(0)
        for number in range(-WARM_UP, rounds):
            if not number:
                before = {name: cpu_s(pid) for name, pid in pids.items()}
            body = requests.body(number)
            for name in rng.sample(sorted(ways), len(ways)):
                client, path = ways[name]
                took = await client.ask(path, body)
                if number >= 0:
                    times[name].append(took)
        used = {name: (cpu_s(pid) - before[name]) / rounds for name, pid in pids.items()}
        found: dict[str, Any] = {"history_tokens": history, "body_bytes": len(body)}
        plain = [statistics.median(each) for each in zip(*times["envoy"], strict=True)]
        for name, rows in times.items():
            first, whole = (statistics.median(each) for each in zip(*rows, strict=True))
            found[name] = {
                "first_ms": round(first * 1e3, 2),
                "whole_ms": round(whole * 1e3, 2),
                "added_first_ms": round((first - plain[0]) * 1e3, 2),
                "added_whole_ms": round((whole - plain[1]) * 1e3, 2),
            }
            if name in used:
                found[name]["cores_at_100_a_second"] = round(used[name] * 100, 3)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/picker_latency", description=__doc__)
    parser.add_argument("--history", type=int, nargs="+", default=[0], help="tokens before the new")
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    for history in given.history:
        print(json.dumps(asyncio.run(measure(history, given.rounds)), indent=1), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["engines"]:
        asyncio.run(serve_engines(2))
    elif sys.argv[1:2] == ["null"]:
        import uvloop

        uvloop.run(serve_null_picker(sys.argv[2]))
    else:
        main()
