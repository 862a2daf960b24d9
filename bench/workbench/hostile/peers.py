"""The callers and publishers of the hostile benchmark that misbehave, as a process.

Run with KIND GRPC HTTP NATS_URL TOKEN_FILE OPENAI, the last one empty where that door is closed.
Prints "ready", and misbehaves between the signals ON
and OFF.
"""

import asyncio
import contextlib
import itertools
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import numpy as np
import uvloop
from grpc import RpcError

from ....base.identity import WorkerWithDpRank
from ....indexer.wire import RouterEvent, Stored, StoredBlock, encode_event_message
from ....router.proto import RouterServiceStub, router_pb2
from ....runtime.event_planes import KV_EVENTS, NatsPlane, endpoint_subject
from ...load import GENERATE, TargetAccess, encode_generate
from .engines import SHORT, TOKENS, Switch
from .openai_peers import OPENAI_PEERS

BURST = 8000
LEAVERS = 100
BLOCKED = 100
BLOCKED_TOKENS = 20_000
LONG_PROMPT = 1 << 20
BOOKED_TOKENS = 100_000
SILENT_CONNECTIONS = 200
"""a second"""
SCRAPES_PER_S = 10
AT_ONCE = 8
PUBLISHED_AT_ONCE = 500
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
ERRORS = (RpcError, OSError, aiohttp.ClientError, asyncio.TimeoutError)


@dataclass(frozen=True)
class Target:
    """The router, and what its caller shows it."""

    grpc: str
    http: str
    nats: str
    access: TargetAccess

    def channel(self) -> Any:
        """A connection of its own each time."""
        options = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
        return self.access.channel(self.grpc, options)

    def generate(self, channel: Any, body: bytes, *metadata: tuple[str, str]) -> Any:
        """A Generate, with more metadata than the caller's own."""
        call = channel.unary_stream(GENERATE, None, None)
        return call(body, metadata=(*self.access.metadata(), *metadata))

    def session(self) -> aiohttp.ClientSession:
        headers = {key.title(): value for key, value in self.access.metadata()}
        return aiohttp.ClientSession(f"http://{self.http}", headers=headers)


def _prompt(tokens: int) -> Any:
    return np.random.default_rng(tokens).integers(3, 32_000, tokens, np.uint32)


async def _over(call: Any) -> None:
    """Read a call to its end, whatever that is."""
    with contextlib.suppress(*ERRORS):
        async for _ in call:
            pass


async def burst(target: Target) -> None:
    """Thousands of requests in the same moment, again and again."""
    prompt = _prompt(64)
    async with target.channel() as channel:
        for turn in itertools.count():
            bodies = (encode_generate(f"burst-{turn}-{n}", prompt, TOKENS) for n in range(BURST))
            await asyncio.gather(*(_over(target.generate(channel, body)) for body in bodies))


async def leavers(target: Target) -> None:
    """Clients whose connection ends while the router writes to them."""
    prompt = _prompt(64)
    for turn in itertools.count():
        async with target.channel() as channel:
            calls = [
                target.generate(channel, encode_generate(f"leaver-{turn}-{n}", prompt, SHORT + 1))
                for n in range(LEAVERS)
            ]
            for call in calls:
                with contextlib.suppress(*ERRORS):
                    await call.read()


async def blocked(target: Target) -> None:
    """Clients that read one message and then stop."""
    prompt = _prompt(64)
    async with target.channel() as channel:
        calls = [
            target.generate(channel, encode_generate(f"blocked-{n}", prompt, BLOCKED_TOKENS))
            for n in range(BLOCKED)
        ]
        for call in calls:
            with contextlib.suppress(*ERRORS):
                await call.read()
        await asyncio.Event().wait()


async def limits(target: Target) -> None:
    """Ids, metadata and prompts as long as may be, and ones that are longer than that."""
    prompt, over = _prompt(LONG_PROMPT), _prompt(LONG_PROMPT + 1)
    async with target.channel() as channel:
        for turn in itertools.count():
            for n, tokens in enumerate((prompt, over)):
                body = encode_generate(f"{turn}-{n}-".ljust(255 + n * 100, "x"), tokens, TOKENS)
                for value in ("v" * 7000, "v" * 9000):
                    await _over(target.generate(channel, body, ("x-padding", value)))


async def selections(target: Target) -> None:
    """Bookings of long prompts that are never released, until there is no room for more."""

    async def book(stub: Any, caller: int) -> None:
        for turn in itertools.count():
            tokens = np.random.default_rng((caller, turn)).integers(3, 32_000, BOOKED_TOKENS)
            asked = router_pb2.SelectWorkerRequest(
                token_ids=tokens.tolist(), request_id=f"squat-{caller}-{turn}"
            )
            with contextlib.suppress(*ERRORS):
                await stub.SelectWorker(asked, metadata=target.access.metadata())

    async with target.channel() as channel:
        stub = RouterServiceStub(channel)
        await asyncio.gather(*(book(stub, caller) for caller in range(2)))


async def questions(target: Target) -> None:
    """Questions about the whole fleet and about long prompts, several at a time."""
    asked = router_pb2.ExplainRequest(token_ids=_prompt(LONG_PROMPT).tolist()).SerializeToString()
    service = "/dynamo_router.v1.RouterService"

    async def ask(channel: Any, method: str, body: bytes) -> None:
        call = channel.unary_unary(f"{service}/{method}", None, None)
        while True:
            with contextlib.suppress(*ERRORS):
                await call(body, metadata=target.access.metadata())

    async with target.channel() as channel:
        await asyncio.gather(
            ask(channel, "Explain", asked),
            *(ask(channel, "ListWorkers", b"") for _ in range(AT_ONCE)),
        )


async def meddlers(target: Target) -> None:
    """Aborts and releases of requests that are others'."""

    async def meddle(channel: Any, caller: int) -> None:
        stub = RouterServiceStub(channel)
        for turn in itertools.count(caller, AT_ONCE):
            booked = router_pb2.BookedRequest(request_id=f"well-behaved-{turn % 10_000}")
            with contextlib.suppress(*ERRORS):
                call: Any = stub.Free(booked, metadata=target.access.metadata())
                await call

    async with target.channel() as channel:
        await asyncio.gather(*(meddle(channel, caller) for caller in range(AT_ONCE)))


async def scraper(target: Target) -> None:
    """A Prometheus that comes ten times a second, and asks for the workers too."""
    async with target.session() as session:
        while True:
            for path in ("/metrics", "/workers"):
                with contextlib.suppress(*ERRORS):
                    async with session.get(path) as answer:
                        await answer.read()
            await asyncio.sleep(1 / SCRAPES_PER_S)


async def slow_scrapers(target: Target) -> None:
    """Connections over which pages are asked for and never read."""
    host, _, port = target.http.rpartition(":")
    asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
    for key, value in target.access.metadata():
        asked += f"{key}: {value}\r\n".encode()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(BLOCKED):
            _, writer = await asyncio.open_connection(host, int(port), limit=1024)
            stack.callback(writer.transport.abort)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            with contextlib.suppress(OSError):
                for _ in range(10):
                    writer.write(asked + b"\r\n")
                    await asyncio.sleep(0.01)
        await asyncio.Event().wait()


async def connections(target: Target) -> None:
    """Connections to both servers over which nothing is sent."""
    async with contextlib.AsyncExitStack() as stack:
        for address in itertools.cycle((target.grpc, target.http)):
            host, _, port = address.rpartition(":")
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                stack.callback(writer.transport.abort)
            await asyncio.sleep(1 / SILENT_CONNECTIONS)


async def _publish(target: Target, messages: Iterator[bytes]) -> None:
    subject = endpoint_subject("dynamo", "backend", "generate", KV_EVENTS)
    plane = NatsPlane(target.nats)
    try:
        while True:
            for message in itertools.islice(messages, PUBLISHED_AT_ONCE):
                await plane.publish(subject, message)
            await plane.flush()
    finally:
        await plane.close()


async def strangers(target: Target) -> None:
    """Events of unknown workers, a new one each time."""
    numbers = random.Random(1)

    def messages() -> Iterator[bytes]:
        while True:
            worker = WorkerWithDpRank(numbers.getrandbits(63))
            blocks = tuple(StoredBlock(numbers.getrandbits(64), b) for b in range(8))
            yield encode_event_message(
                [RouterEvent(worker, 0, Stored(None, blocks), "device")],
                numbers.getrandbits(63),
                0,
                0,
            )

    await _publish(target, messages())


async def junk(target: Target) -> None:
    """Messages that are no events, as many as NATS takes."""
    await _publish(target, map(random.Random(1).randbytes, itertools.repeat(200)))


PEERS: dict[str, Callable[[Target], Awaitable[None]]] = {
    peer.__name__.replace("_", "-"): peer
    for peer in (
        burst,
        leavers,
        blocked,
        limits,
        selections,
        questions,
        meddlers,
        scraper,
        slow_scrapers,
        connections,
        strangers,
        junk,
    )
}


async def main(kind: str, grpc: str, http: str, nats: str, token_file: str, openai: str) -> None:
    """Misbehave on a signal, until the process is ended."""
    switch = Switch()
    access = TargetAccess(token_file=token_file)
    misbehave: Callable[[], Awaitable[None]]
    if kind in OPENAI_PEERS:
        misbehave = partial(OPENAI_PEERS[kind], openai, access)
    else:
        misbehave = partial(PEERS[kind], Target(grpc, http, nats, access))
    print("ready", flush=True)
    while True:
        await switch.wait(True)
        both = {asyncio.ensure_future(task) for task in (misbehave(), switch.wait(False))}
        ended, others = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in ended:
            task.result()  # raises what ended a peer before its time


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
