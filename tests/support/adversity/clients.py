"""Clients of every kind under adversity. Each keeps an entry of the ledger, and says at once what
the router may have counted it as and whether what it was told is right.
"""

import asyncio
import contextlib
from random import Random
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from grpc import aio
from support.adversity.ledger import NOT_COUNTED, Entry, Ledger
from support.adversity.schedule import Step
from support.adversity.world import BLOCK, World
from support.chats.clients import CHAT_KINDS, ChatClients

from dynamo_router.engines.mocker.own_model import OWN_VOCABULARY
from dynamo_router.engines.mocker.sampling import plan_output
from dynamo_router.engines.serving.request import EngineRequest
from dynamo_router.router.proto import RouterServiceStub
from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.workers.trtllm_proto import SERVICE, pb

PINNED_KEY = "x-dynamo-worker-instance-id"
EOS = 2  # of a mock engine
HUGE_ID_BYTES = 256 << 10
BLOCKED_TOKENS = 6000
"""Enough messages to fill every buffer to a client that reads none."""


class Clients:
    """The clients of one step, over the world's channels. `run` one of a kind; it always ends."""

    def __init__(self, world: World, ledger: Ledger, step: Step) -> None:
        self._world, self._ledger, self._step = world, ledger, step
        self._random = Random(step.seed)
        self._made = 0
        self._prompts: list[list[int]] = []
        self._messages = 0
        self.others_are_done = asyncio.Event()
        """set when those that read nothing may go"""
        self.select = RouterServiceStub(world.near)
        self._chats = ChatClients(
            world.http_clients,
            world.openai,
            world.oracle,
            ledger,
            Random(step.seed + 1),
            loses_streams=step.loses_streams,
        )

    async def run(self, kind: str) -> None:
        if kind in CHAT_KINDS:
            await self._chats.run(kind)
        else:
            await getattr(self, f"_run_{kind}")(kind)

    @property
    def messages(self) -> int:
        """That arrived so far, at all of them."""
        return self._messages + self._chats.messages

    @property
    def prompts(self) -> list[list[int]]:
        """Of the requests so far."""
        return self._prompts + self._chats.prompts

    # Those that behave

    async def _run_stream(self, kind: str) -> None:
        await self._ordinary(kind, streaming=True)

    async def _run_unary(self, kind: str) -> None:
        await self._ordinary(kind, streaming=False)

    async def _run_pinned(self, kind: str) -> None:
        engine = self._random.randrange(len(self._world.worker_ids))
        pin = ((PINNED_KEY, str(self._world.worker_ids[engine])),)
        excused = engine in self._step.faulty_engines
        await self._ordinary(kind, streaming=True, metadata=pin, excused=excused)

    async def _ordinary(
        self,
        kind: str,
        *,
        streaming: bool,
        metadata: tuple[tuple[str, str], ...] = (),
        excused: bool = False,
    ) -> None:
        """Asks, reads everything, and fails only for a reason."""
        entry, request = self._request(kind, streaming=streaming)
        entry.excused = excused
        answer = Answer(request, entry)
        await self._read(self._call(request, metadata=metadata), answer)
        entry.counted_as = frozenset((entry.code,))
        answer.check()
        if entry.code not in ("ok", *self._losses(entry)) and not excused:
            entry.wrong.append("it failed while a healthy worker could be reached")

    # Those that do not stay

    async def _run_leaver(self, kind: str) -> None:
        entry, request = self._request(kind, tokens=self._random.randint(5, 60))
        call, answer = self._call(request), Answer(request, entry)
        try:
            await self._read(call, answer, most=self._random.randint(0, 3))
        finally:
            call.cancel()
        left, lost = entry.code == "", self._losses(entry)
        may = {"ok", "cancelled", *lost} if left else {entry.code}
        entry.counted_as = frozenset(may if entry.messages else may | {NOT_COUNTED})
        answer.check()
        if not left and entry.code not in ("ok", *lost):
            entry.wrong.append("it failed before it left")

    async def _run_blocked(self, kind: str) -> None:
        """Reads one message, then nothing, until the others are done."""
        entry, request = self._request(kind, tokens=BLOCKED_TOKENS)
        call, answer = self._call(request), Answer(request, entry)
        try:
            await self._read(call, answer, most=1)
            await self.others_are_done.wait()
        finally:
            call.cancel()
        left = entry.code == ""
        may = {"ok", "cancelled", "deadline_exceeded"} if left else {entry.code}
        entry.counted_as = frozenset(may | self._losses(entry))
        answer.check()
        if not left and entry.code not in self._losses(entry):
            entry.wrong.append("it failed while a healthy worker could be reached")

    async def _run_deadline(self, kind: str) -> None:
        entry, request = self._request(kind, tokens=self._random.randint(5, 100))
        answer = Answer(request, entry)
        await self._read(self._call(request, timeout=self._random.uniform(0.02, 0.6)), answer)
        late = entry.code == "deadline_exceeded"
        entry.counted_as = frozenset((entry.code, "ok", NOT_COUNTED) if late else (entry.code,))
        answer.check()
        if not late and entry.code not in ("ok", *self._losses(entry)):
            entry.wrong.append("it failed while a healthy worker could be reached")

    async def _run_aborted(self, kind: str) -> None:
        entry, request = self._request(kind, tokens=self._random.randint(20, 100))
        call, answer = self._call(request), Answer(request, entry)
        reading = asyncio.create_task(self._read(call, answer))
        abort: Any = self._world.near.unary_unary(
            f"/{SERVICE}/Abort",
            pb.AbortRequest.SerializeToString,
            pb.AbortResponse.FromString,
        )
        while not (entry.messages or reading.done()):
            await asyncio.sleep(0.005)
        await abort(pb.AbortRequest(request_id=entry.request_id), timeout=30)
        await reading
        entry.counted_as = frozenset((entry.code,))
        answer.aborted = True
        answer.check()
        if entry.code not in ("ok", "cancelled", *self._losses(entry)):
            entry.wrong.append("it failed otherwise than by its abort")

    async def _run_remote(self, kind: str) -> None:
        """Behind a network with faults of its own: whatever becomes of it, the router lets go."""
        entry, request = self._request(kind, tokens=self._random.randint(3, 40))
        call = self._call(request, channel=self._world.far, timeout=4.0)
        answer = Answer(request, entry)
        await self._read(call, answer)
        may = {"ok", "cancelled", "deadline_exceeded", NOT_COUNTED}
        entry.counted_as = frozenset(("ok",) if entry.code == "ok" else may | {entry.code})
        answer.check()

    # Those that only ask where to go

    async def _run_selector(self, kind: str) -> None:
        """Books a worker; marks, frees, or forgets to."""
        request_id, tokens = f"s{self._step.seed}-{self._next()}", self._prompt()
        forgets = self._random.random() < 0.3
        entry = Entry(kind, request_id)
        try:
            asked = rpb.SelectWorkerRequest(token_ids=tokens, request_id=request_id)
            chosen = await self.select.SelectWorker(asked, timeout=30)
            booked = rpb.BookedRequest(request_id=request_id)
            if not chosen.booked:
                entry.wrong.append("it was not booked")
            if not (await self.select.MarkPrefillComplete(booked, timeout=30)).known:
                entry.wrong.append("its booking is not known")
            if not forgets and not (await self.select.Free(booked, timeout=30)).known:
                entry.wrong.append("its booking was gone")
        except aio.AioRpcError as error:
            entry.wrong.append(f"{error.code().name}: {error.details()}")
        if entry.wrong:
            entry.counted_as = frozenset((NOT_COUNTED,))
            self._ledger.entries.append(entry)

    # Those that mean ill

    async def _run_junk(self, kind: str) -> None:
        body = self._random.randbytes(self._random.randint(1, 2000))
        entry = self._ledger.open(kind, f"junk{self._next()}")
        await self._read(self._call(body), Answer(None, entry))
        self._refused(entry, "invalid_argument")

    async def _run_huge_id(self, kind: str) -> None:
        entry, request = self._request(kind)
        request.request_id += "x" * HUGE_ID_BYTES
        answer = Answer(request, entry)
        await self._read(self._call(request), answer)
        refusals = ("invalid_argument", "resource_exhausted")
        self._refused(entry, "ok", *refusals, *self._losses(entry))

    async def _run_same_id(self, kind: str) -> None:
        """Several requests under one id: at most one at a time is served."""
        _, request = self._request(kind, tokens=20)
        self._ledger.entries.pop()

        async def ask() -> None:
            entry = self._ledger.open(kind, request.request_id)
            await self._read(self._call(request), Answer(request, entry))
            self._refused(entry, "ok", "already_exists", *self._losses(entry))

        await asyncio.gather(ask(), ask(), ask())

    async def _run_raw_bytes(self, kind: str) -> None:
        """Speaks no HTTP/2 at all."""
        host, _, port = self._world.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(OSError):
            writer.write(self._random.randbytes(5000))
            await asyncio.wait_for(writer.drain(), 10)
            await asyncio.wait_for(reader.read(100), 10)
        writer.transport.abort()

    def _losses(self, entry: Entry) -> set[str]:
        """What a stream may be told that has begun, where its worker was taken away."""
        return {"unavailable"} if entry.messages and self._step.loses_streams else set()

    def _refused(self, entry: Entry, *codes: str) -> None:
        entry.counted_as = frozenset((entry.code, NOT_COUNTED))
        if entry.code not in codes:
            entry.wrong.append(f"it was not told one of {codes}")

    # How they ask

    def _next(self) -> int:
        self._made += 1
        return self._made

    def _prompt(self) -> list[int]:
        """Tokens of which a part is shared with others'."""
        random = self._random
        family = random.randrange(6)
        shared = [300 * (family + 1) + n for n in range(BLOCK * random.randint(0, 8))]
        own = [random.randrange(2500, OWN_VOCABULARY) for _ in range(random.randint(1, 6 * BLOCK))]
        prompt = shared + own
        self._prompts.append(prompt)
        return prompt

    def _request(
        self, kind: str, *, tokens: int | None = None, streaming: bool = True
    ) -> tuple[Entry, Any]:
        request = pb.GenerateRequest(
            request_id=f"{kind}-{self._step.seed}-{self._next()}",
            max_tokens=tokens or self._random.randint(1, 60),
            streaming=streaming,
        )
        request.tokenized.input_token_ids.extend(self._prompt())
        return self._ledger.open(kind, request.request_id), request

    def _call(
        self,
        request: Any,
        *,
        channel: Any = None,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        channel = channel or self._world.near
        body = request if isinstance(request, bytes) else request.SerializeToString()
        generate = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        return generate(body, timeout=timeout, metadata=metadata)

    async def _read(self, call: Any, answer: "Answer", *, most: int | None = None) -> None:
        """To the end, or so many messages."""
        entry = answer.entry
        try:
            while entry.messages != most:
                message = await call.read()
                if message is aio.EOF:
                    entry.code = (await call.code()).name.lower()
                    return
                self._messages += 1
                answer.take(message)
        except aio.AioRpcError as error:
            entry.code, entry.details = error.code().name.lower(), error.details() or ""
        finally:
            if most is None:
                call.cancel()  # does nothing to a call that is over


class Answer:
    """Compares what comes with what a mock engine must say, whichever it is."""

    def __init__(self, request: Any, entry: Entry) -> None:
        self.entry = entry
        self.aborted = False
        """its end may be early"""
        self._tokens: list[int] = []
        self._whole: list[int] | None = None
        self._request = request

    def take(self, message: bytes) -> None:
        entry = self.entry
        entry.messages += 1
        try:
            response = pb.GenerateResponse.FromString(message)
        except DecodeError:
            entry.wrong.append("a message cannot be read")
            return
        if self._whole is not None:
            entry.wrong.append("a message came after the last one")
        if response.request_id != entry.request_id and len(response.request_id) < 1000:
            entry.wrong.append(f"a message is for {response.request_id!r}")
        if response.HasField("complete"):
            self._whole = list(response.complete.output_token_ids)
        else:
            self._tokens += response.chunk.token_ids
            if response.chunk.completion_tokens != len(self._tokens):
                entry.wrong.append(f"token {response.chunk.completion_tokens} is out of order")

    def check(self) -> None:
        """At the end: everything came if the status says so, and nothing else in any case."""
        entry = self.entry
        expected = self._expected()
        for tokens in (self._tokens, self._whole or []):
            if tokens != expected[: len(tokens)]:
                entry.wrong.append("tokens are not those of the prompt")
        if entry.code == "ok" and not self.aborted:
            streamed = self._tokens if self._request.streaming else expected
            if self._whole != expected or streamed != expected:
                entry.wrong.append(f"OK with {len(streamed)} of {len(expected)} tokens")

    def _expected(self) -> list[int]:
        asked = EngineRequest(
            request_id="",
            token_ids=np.array(self._request.tokenized.input_token_ids, dtype=np.uint32),
            max_tokens=self._request.max_tokens,
        )
        tokens: list[int] = plan_output(
            asked, vocab_size=OWN_VOCABULARY, ends=frozenset({EOS})
        ).tokens.tolist()
        return tokens
