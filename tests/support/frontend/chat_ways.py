"""A server whose plain chats go one of the two ways, its clients, and what must hold after them."""

import asyncio
import gc
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, NamedTuple

import pytest
from support.fake_engine import FakeEngine, answer
from support.polling import until
from support.servers.openai_serving import BLOCK, Served, openai_serving

from dynamo_router.base.request_record import RequestRecord
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend import generation
from dynamo_router.frontend._plain_stream import PlainStream
from dynamo_router.frontend.plain_chat import PlainChats
from dynamo_router.frontend.processor import ModelText, PieceCache
from dynamo_router.frontend.sse_writer import SseWriter
from dynamo_router.process.off_loop import OffLoop
from dynamo_router.router import kv_router
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.placement import Placement
from dynamo_router.router.policy.forecast import ForecastPolicy
from dynamo_router.router.policy.residuals import ResidualWatch
from dynamo_router.server.dispatch.request import Attempt, Request
from dynamo_router.transport.http1 import connection
from dynamo_router.transport.http1.exchange import Exchange

CHAT = "/v1/chat/completions"
WAYS = ("native", "long")
"""That of plain chats, and that of all other requests, without a step of the first."""
MADE_OF = (PlainStream, SseWriter, Request, Attempt, Exchange)
"""What requests are made of, and nothing may hold once they have ended."""


ROUTER = KvRouterConfig(block_size=BLOCK, seed=1, router_predicted_ttl_secs=0)


class Taken:
    """Which way chats went: whether each was begun, and decided, as a plain one."""

    def __init__(self) -> None:
        self.begun: list[bool] = []
        self.decided: list[bool] = []
        self.records: list[RequestRecord] = []
        """of all requests that connections began to read"""

    def clear(self) -> None:
        self.records.clear()
        self.begun.clear()
        self.decided.clear()

    def check(self, way: str, *, decided: bool = True) -> None:
        """All of them went that way, and there was one; `decided`: a decision, too. (One that is
        made again takes all steps, as one for which no worker is ready.)"""
        native = way == "native"
        assert self.begun == [True] * len(self.begun) and bool(self.begun) == native, self.begun
        if decided:
            assert any(self.decided) == native


class _NotedDecisions:
    """Those of a router, of which it is noted whether they are plain."""

    def __init__(self, plain: Any, taken: Taken) -> None:
        self._plain, self._taken = plain, taken
        self.seconds_until_free = plain.seconds_until_free

    def place(self, placement: Placement) -> Any:
        found = self._plain.place(placement)
        self._taken.decided.append(found is not None)
        return found


@contextmanager
def chats_go(way: str) -> Iterator[Taken]:
    """Chats of servers that are made in this block take this way."""
    taken, begin, decisions = Taken(), PlainChats.begin, kv_router.plain_decisions

    def noted(self: PlainChats, call: Any) -> Any:
        found = begin(self, call)
        taken.begun.append(found is not None)
        return found

    def noted_decisions(*parts: Any) -> Any:
        plain = decisions(*parts)
        return None if plain is None else _NotedDecisions(plain, taken)

    def noted_record(*given: Any) -> RequestRecord:
        record = RequestRecord(*given)
        taken.records.append(record)
        return record

    with pytest.MonkeyPatch.context() as patched:
        # How long an answer of a test's engine takes says how busy the machine is: a forecast that
        # lost its trust by that would have decisions take all steps.
        patched.setattr(ResidualWatch, "_fail", lambda watch: False)
        patched.setattr(connection, "RequestRecord", noted_record)
        if way == "native":
            patched.setattr(PlainChats, "begin", noted)
            patched.setattr(kv_router, "plain_decisions", noted_decisions)
        else:
            patched.setattr(PlainChats, "begin", lambda self, call: None)
            patched.setattr(kv_router, "plain_decisions", lambda *parts: None)
            patched.setattr(generation, "_plain_text", lambda *parts: None)
        yield taken


class Answer(NamedTuple):
    """What a client got."""

    status: int
    text: str = ""
    reason: str | None = None
    usage: tuple[int, int] | None = None
    error: str = ""
    whole: bool = False
    """its end came"""


def chat(content: str = "a b the of", **more: Any) -> dict[str, Any]:
    """A plain one."""
    body: dict[str, Any] = {"model": "tiny", "stream": True, "max_tokens": 4}
    messages = [{"role": "user", "content": content}]
    return {**body, "messages": messages, "stream_options": {"include_usage": True}, **more}


def text_of(ids: list[int]) -> str:
    """What a served model says by these."""
    with closing(OffLoop()) as off_loop:
        return ModelText(OWN_MODEL, off_loop, PieceCache(0)).detokenizer().feed(ids)


class Client:
    """One connection, with one chat."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._came = b""

    async def begun(self) -> None:
        """Returns once the first text came."""
        async with asyncio.timeout(60):
            self._came = await self.reader.readuntil(b'"content"')

    async def leaves(self) -> None:
        """As one whose process has ended: what comes still is not taken."""
        self.writer.transport.abort()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    async def answer(self) -> Answer:
        """All that comes, up to the end of the connection. TimeoutError if nothing more does: how
        long all of it takes says how busy the machine is."""
        came = [self._came]
        try:
            while came[-1] or len(came) == 1:
                async with asyncio.timeout(60):
                    came.append(await self.reader.read(1 << 20))
        except ConnectionError:
            pass  # it ended in the middle
        await self.leaves()
        return read_answer(b"".join(came))


def read_answer(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    if not head:
        return Answer(0)
    status, chunked = int(head.split()[1]), b"chunked" in head
    content, whole = _unchunked(body) if chunked else (body, True)
    if not content.startswith(b"data: "):
        error = json.loads(content)["error"]["message"] if whole and content else ""
        return Answer(status, error=error, whole=whole)
    *events, rest = content.decode().split("\n\n")
    text, reason, usage, error = "", None, None, ""
    for event in events:
        if event in ("data: [DONE]", ": keep-alive"):
            continue
        told = json.loads(event.removeprefix("data: "))
        if "error" in told:
            error = told["error"]["message"]
            continue
        if told.get("usage"):
            usage = told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]
        for choice in told["choices"]:
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
    ended = whole and events[-1] == "data: [DONE]" and not rest
    return Answer(status, text, reason, usage, error, ended)


def _unchunked(body: bytes) -> tuple[bytes, bool]:
    """The content, as far as it came, and whether that is all."""
    found = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return b"".join(found), True
        found.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(found), False


class ChatServer:
    """The server, and all that was asked of it."""

    def __init__(self, served: Served, way: str, taken: Taken, engines: list[FakeEngine]) -> None:
        self.served, self.server, self.way, self.taken = served, served.server, way, taken
        self.engines = engines
        self.counted: list[RequestRecord] = []
        count = self.server.parts.answers.counts.count

        def counted(record: RequestRecord) -> None:
            count(record)
            self.counted.append(record)

        self.server.parts.answers.counts.count = counted  # type: ignore[method-assign]

    @property
    def ended(self) -> list[RequestRecord]:
        """The records of chats that were answered, or ended otherwise."""
        return [record for record in self.counted if record.route == CHAT]

    @property
    def openai(self) -> Any:
        """The listener of clients."""
        return self.server._openai[0]

    @property
    def connections(self) -> Any:
        """Those of clients, and the tasks that answer them."""
        return self.openai._listener._connections

    async def send(self, body: dict[str, Any], buffer: int = 0, part: int = 0) -> Client:
        """A client that asks. `buffer`: bytes that its system takes before it is read; `part`: so
        many bytes of the body are sent, and read, before the others."""
        data = json.dumps(body, ensure_ascii=False).encode()
        made = socket.socket()
        if buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self.openai.port))
        except ConnectionError:
            made.close()
            raise
        reader, writer = await asyncio.open_connection(sock=made, limit=buffer or 1 << 16)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: "
        writer.write(f"{head}{len(data)}\r\n\r\n".encode() + data[:part])
        if part:
            open_connections = self.connections.open
            await until(lambda: any(each._arriving is not None for each in open_connections))
        writer.write(data[part:])
        return Client(reader, writer)

    async def ask(self, body: dict[str, Any]) -> Answer:
        try:
            client = await self.send(body)
        except ConnectionError:  # its listener is closed
            return Answer(0)
        return await client.answer()

    def left_over(self) -> str:
        """A word on what requests have left behind; empty: nothing."""
        server, router = self.server, self.server.router
        slots, calls = router.slots, server.parts.calls
        found = {
            "in flight": server.dispatcher.in_flight,
            "requests booked": int(slots.active_requests().sum()),
            "blocks booked": int(slots.active_blocks().sum()),
            "prefill booked": int(slots.active_prefill_tokens().sum()),
            "requests counted": calls.requests.used,
            "bytes counted": calls.bytes.used + calls.answer_bytes.used,
            "retries": server.dispatcher.budget.retrying,
            "aborts": server.dispatcher.aborts.pending,
            "answering": len(self.connections.tasks),
            "at engines": sum(len(e.requests) - len(e.ended) for e in self.engines),
            "unseen": len(self.taken.records) - len(self.counted),
        }
        return str({name: number for name, number in found.items() if number} or "")

    async def settled(self) -> None:
        """Every request has ended, once, and left nothing."""
        try:
            await until(lambda: not self.left_over())
        except AssertionError:
            raise AssertionError(self.left_over()) from None
        policy: Any = self.server.router._policy
        if isinstance(policy, ForecastPolicy):
            policy.check_integrity()
        made, counted = self.taken.records, self.counted
        assert set(map(id, made)) == set(map(id, counted)) and len(made) == len(counted)

    async def check(self) -> None:
        """The same, the metrics', and that nothing holds what ended requests were made of."""
        await self.settled()
        async with self.served.session.get(f"http://{self.server.http_address}/metrics") as page:
            lines = [line for line in (await page.text()).splitlines() if line[:1] != "#"]
        samples = {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines)}
        name = "dynamo_component_router_requests"
        ended = sum(n for key, n in samples.items() if key.startswith(f"{name}_total{{"))
        assert ended == samples[f"{name}_started_total"]
        try:
            await until(lambda: not kept())
        except AssertionError:
            raise AssertionError(kept()) from None


def kept() -> Counter[str]:
    """What ended requests were made of and is still there, by its kind."""
    gc.collect()
    made_of = [each for each in gc.get_objects() if isinstance(each, MADE_OF)]
    return Counter(
        type(each).__name__
        for each in made_of
        if not (isinstance(each, Exchange) and each.record.route != CHAT)  # of this test's look
    )


@asynccontextmanager
async def chat_server(way: str, *engines: FakeEngine, **config: Any) -> AsyncIterator[ChatServer]:
    """Serve the engines to plain chats that go this way. Every request has left nothing when the
    block ends."""
    config.setdefault(
        "router", KvRouterConfig(block_size=BLOCK, seed=1, router_predicted_ttl_secs=0)
    )
    for engine in engines:
        engine.has_events = True
    with chats_go(way) as taken:
        async with openai_serving(*engines, **config) as served:
            chats = ChatServer(served, way, taken, list(engines))
            scripts = [engine.script for engine in engines]
            for engine in engines:
                engine.script = answer

            async def is_plain() -> bool:
                """The words of a first one are not known."""
                assert (await chats.ask(chat())).text
                return way == "long" or (taken.begun[-1] and taken.decided[-1:] == [True])

            if way == "native":  # caches are predicted until they are known
                entries = chats.server.router.registry.entries
                await until(lambda: {each.event_source for each in entries()} == {"grpc"})
            await until(is_plain)
            await chats.settled()
            for engine, script in zip(engines, scripts, strict=True):
                engine.script = script
                engine.requests.clear()
                engine.ended.clear()
                engine.finished.clear()
            taken.clear()
            chats.counted.clear()
            gc.freeze()  # so that looking for what is kept takes no time
            try:
                yield chats
                await chats.check()
            finally:
                gc.unfreeze()
