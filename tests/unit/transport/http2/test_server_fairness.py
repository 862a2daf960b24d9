"""What one client does leaves the others their turn: calls in heaps, and answers not read."""

import asyncio
from collections import Counter

import pytest
from support.polling import until
from support.servers import http2_frames as raw
from support.servers.http2_client import head_of, listening, raw_client

from dynamo_router.process.loop_turns import END_S, MOST_S
from dynamo_router.transport.grpc_methods import Method, served_plainly
from dynamo_router.transport.http2 import ServerCall, ServerLimits

pytestmark = pytest.mark.usefixtures("leaves_nothing")
CALLS = 300


async def test_a_connection_full_of_calls_leaves_others_their_turn() -> None:
    began: list[str] = []

    async def serve(call: ServerCall) -> None:
        began.append(dict(call.invocation_metadata())["x-who"])  # type: ignore[arg-type]

    def call_of(who: bytes, stream: int) -> bytes:
        return raw.headers(stream, head_of("/a.B/serve", (b"x-who", who)), end=True)

    async with listening({"/a.B/serve": serve}) as (server, port):
        async with raw_client(port) as many, raw_client(port) as one:
            many.greet()
            one.greet()
            await asyncio.gather(many.until(raw.SETTINGS), one.until(raw.SETTINGS))
            many.send(b"".join(call_of(b"many", 1 + 2 * n) for n in range(CALLS)))
            one.send(call_of(b"one", 1))
            await until(lambda: len(began) == CALLS + 1)
            assert began.index("one") < CALLS // 2


async def test_a_call_full_of_messages_leaves_others_their_turn() -> None:
    taken = 0

    async def count(requests: object, call: ServerCall) -> None:
        nonlocal taken
        async for _ in requests:  # type: ignore[attr-defined]
            taken += 1

    serve = served_plainly(Method(count, streams=True))
    async with listening({"/a.B/count": serve}) as (_, port), raw_client(port) as client:
        client.greet()
        client.send(raw.headers(1, head_of("/a.B/count")))
        client.send(raw.data(1, raw.message(b"") * CALLS, end=True))
        turns = {0}
        while taken < CALLS:
            await asyncio.sleep(0)
            turns.add(taken)
        assert len(turns) > CALLS // 2
        await client.until(raw.HEADERS, stream=1)


async def test_an_answer_that_was_cut_short_does_not_linger_for_ever() -> None:
    """A client that reads nothing breaks a rule: its status waits behind what it does not read."""

    async def answer(call: ServerCall) -> None:
        await call.write(bytes(50_000))
        await asyncio.Event().wait()

    limits = ServerLimits(linger_s=0.05)
    async with listening({"/a.B/answer": answer}, limits) as (server, port):
        async with raw_client(port) as client:
            client.greet((raw.INITIAL_WINDOW_SIZE, 1000))
            client.send(raw.headers(1, head_of("/a.B/answer")))
            await client.until(raw.DATA, stream=1)
            client.send(raw.data(1, raw.message(b"x", compressed=True)))
            await until(lambda: not server.calls_open)
            await client.until(raw.RST_STREAM, stream=1)


async def test_metadata_that_are_no_call_are_counted() -> None:
    hits: list[str] = []
    limits = ServerLimits(max_header_bytes=4000)
    async with listening(limits=limits, on_limit=hits.append) as (_, port):
        async with raw_client(port) as client:
            client.greet()
            long = tuple((b"x-%d" % n, b"y" * 1000) for n in range(15))
            client.send(raw.headers(1, head_of("/a.B/echo", *long)))
            await client.until(raw.RST_STREAM, stream=1)
    assert hits == ["max_metadata_bytes"]


async def test_messages_that_have_not_come_whole_are_bounded() -> None:
    class Bound:
        used = 0

        def take(self, caller: str, amount: int) -> str | None:
            assert caller == "127.0.0.1"
            if self.used + amount > 300_000:
                return "full"
            self.used += amount
            return None

        def give_back(self, caller: str, amount: int) -> None:
            self.used -= amount
            assert self.used >= 0

    bound = Bound()
    async with listening(input_bound=bound) as (server, port):
        async with raw_client(port) as client:
            client.greet()
            for stream in (1, 3, 5):
                client.send(raw.headers(stream, head_of("/a.B/echo")))
                client.send(raw.data(stream, (1 << 20).to_bytes(5, "big")))
                for _ in range(6):
                    client.send(raw.data(stream, bytes(16_000)))
            await until(lambda: bound.used > 250_000)
            for _ in range(6):
                client.send(raw.data(5, bytes(16_000)))
            reset = await client.until(raw.RST_STREAM)
            assert client.status(reset.stream) == (b"8", b"no room for the call's message")
            await until(lambda: bound.used < 220_000)
        await until(lambda: not bound.used)


async def test_the_calls_of_a_connection_that_is_lost_end_a_few_in_a_turn() -> None:
    under_way, ended = 0, Counter[int]()

    async def serve(call: ServerCall) -> None:
        nonlocal under_way
        under_way += 1
        try:
            await asyncio.Event().wait()
        finally:
            under_way -= 1
            ended[turn] += 1

    async with listening({"/a.B/serve": serve}) as (_, port):
        turn = 0
        async with raw_client(port) as client:
            client.greet()
            client.send(
                b"".join(raw.headers(1 + 2 * n, head_of("/a.B/serve")) for n in range(CALLS))
            )
            await until(lambda: under_way == CALLS)
        while under_way:
            turn += 1
            await asyncio.sleep(0)
    assert ended.total() == CALLS
    assert max(ended.values()) <= MOST_S / END_S + 1
