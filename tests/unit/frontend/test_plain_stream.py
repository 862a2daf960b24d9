"""Plain streams written natively are, byte for byte, what the steps in Python write."""

import asyncio
from array import array
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend._plain_stream import PlainStream
from dynamo_router.frontend.engine_requests import Choice, HashedPrompt
from dynamo_router.frontend.generation import AnswerReader, Workers, answer
from dynamo_router.frontend.openai import Answer, ChatRequest, CompletionRequest, Delta, Usage
from dynamo_router.frontend.origin import origin_of
from dynamo_router.frontend.processor import ByteText, ModelText
from dynamo_router.frontend.sse_writer import PlainEvents, SseWriter
from dynamo_router.process.loop_turns import LoopTurns
from dynamo_router.process.off_loop import OffLoop
from dynamo_router.router.pairs import PairDecision
from dynamo_router.router.policy import Decision
from dynamo_router.router.prompt import Prompt
from dynamo_router.server.access import ANONYMOUS
from dynamo_router.server.dispatch import RequestReader
from dynamo_router.transport.http1 import Client
from dynamo_router.workers.trtllm_proto import pb


class Engine:
    """In place of a dispatcher: gives these messages, a few in each turn of the event loop."""

    def __init__(self, messages: list[bytes], in_a_turn: int) -> None:
        self.reader = RequestReader(16)
        self._messages, self._in_a_turn = messages, in_a_turn

    async def generate(self, request: Any, respond: Any, *, put: Any, **more: Any) -> PairDecision:
        assert isinstance(put, PlainStream)
        for number, message in enumerate(self._messages):
            if not put(message):
                await respond(message)
            if number % self._in_a_turn == 0:
                await asyncio.sleep(0)
        return PairDecision(Decision(WorkerWithDpRank(1, 0), 0, 0, 1, 0))

    async def finish(self, request_id: str, caller: Any) -> None: ...


class Output:
    """What a client gets."""

    def __init__(self) -> None:
        self.sent = b""

    def begin(self, status: int, headers: Any, lines: bytes = b"") -> None: ...

    def write(self, data: bytes, *, more: bool = True) -> None:
        self.sent += data

    async def send(self, message: Any) -> None:
        self.sent += message["body"]


@cache
def text() -> ModelText:
    return ModelText(OWN_MODEL, OffLoop())


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    text()._off_loop.close()
    text.cache_clear()


def request(chat: bool, fields: dict[str, Any]) -> Any:
    if chat:
        return ChatRequest(model="m", messages=[], stream=True, **fields)
    return CompletionRequest(model="m", prompt=cast(Any, b"[1]"), stream=True, **fields)


def new_choice() -> Choice:
    ids = array("I", [1])
    return Choice(0, HashedPrompt(ids, Prompt(ids, 16)), 16)


async def written(
    asked: Any, messages: list[bytes], in_a_turn: int, *, native: bool
) -> tuple[bytes, Usage, int]:
    """What goes out of one answer, its usage, and how many streams were begun natively."""
    engine, output, client = Engine(messages, in_a_turn), Output(), Client()
    client.output = output
    choice = new_choice()
    kind = "chat" if isinstance(asked, ChatRequest) else "completion"
    form = Answer("id", 7, "m", asked, None, cast(Any, kind))
    stream = SseWriter(output.send, client, {}, 15.0, form.shape)
    begun = 0

    def take(index: int, delta: Delta) -> None:
        usage = choice.usage if form.usage_in_each else None
        stream.put(form.chunk(index, delta, usage), last=delta.finish_reason is not None)

    def begin(choice: Choice, plain: PlainStream, read: ByteText) -> None:
        nonlocal begun
        begun += form.plain_events(choice.index) is not None
        plain.begin(read, choice, client, stream, form)

    workers = Workers(cast(Any, engine), LoopTurns())
    origin = origin_of(asked, {}, ANONYMOUS, "r", "id")
    begin_it = begin if native else None
    try:
        await answer(workers, text(), asked, [choice], origin, take, client, begin_it)
    finally:
        await stream.close()
        engine.reader.close()
    await stream.end(b"[DONE]")
    return output.sent, choice.usage, begun


def chunk(ids: list[int], prompt: int, cached: int, logprobs: bool = False) -> bytes:
    response = pb.GenerateResponse()
    response.chunk.token_ids.extend(ids)
    response.chunk.prompt_tokens, response.chunk.cached_tokens = prompt, cached
    if logprobs:
        response.chunk.logprobs.add(token_id=ids[0] if ids else 0, logprob=-1.0)
    return cast(bytes, response.SerializeToString())


def complete(ids: list[int], reason: str) -> bytes:
    response = pb.GenerateResponse()
    response.complete.output_token_ids.extend(ids)
    response.complete.finish_reason = reason
    response.complete.prompt_tokens = 5
    return cast(bytes, response.SerializeToString())


IDS = st.lists(st.integers(0, 4200), max_size=5)
CHUNKS = st.builds(chunk, IDS, st.integers(0, 9), st.integers(0, 3), st.booleans())
LONG = st.lists(st.integers(0, 4200), min_size=65, max_size=70)
"""More than a plain chunk has."""
MESSAGES = st.one_of(
    CHUNKS,
    CHUNKS,
    CHUNKS,
    st.builds(chunk, LONG, st.just(5), st.just(0)),
    st.builds(complete, IDS, st.sampled_from(["stop", "length"])),
)
FIELDS = st.sampled_from(
    [{}, {}, {"stop": "ab"}, {"logprobs": 1}, {"stream_options": {"continuous_usage_stats": True}}]
)


@settings(max_examples=200, deadline=None)
@given(st.booleans(), FIELDS, st.lists(MESSAGES, max_size=20), st.integers(1, 6))
def test_both_ways_write_the_same(
    chat: bool, fields: dict[str, Any], messages: list[bytes], in_a_turn: int
) -> None:
    body = {"model": "m", "stream": True, **fields}
    body |= {"messages": []} if chat else {"prompt": "p"}
    if chat and "logprobs" in fields:
        body["logprobs"] = True
    kind: Any = ChatRequest if chat else CompletionRequest
    asked = msgspec.json.decode(msgspec.json.encode(body), type=kind)

    async def both() -> None:
        native = await written(asked, messages, in_a_turn, native=True)
        steps = await written(asked, messages, in_a_turn, native=False)
        assert native[:2] == steps[:2]
        assert not steps[2]
        if fields:
            assert not native[2]

    asyncio.run(both())


async def test_a_plain_stream_takes_no_step_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnswerReader, "read", lambda *_: pytest.fail("all of it is plain"))
    messages = [chunk([each], 5, 0) for each in (300, 301, 302)] + [complete([], "stop")]
    sent, usage, begun = await written(request(True, {}), messages, 1, native=True)
    assert begun == 1
    assert usage.completion_tokens == 3
    assert sent.count(b"data: ") == 5  # texts, the finish reason, and the end
    assert sent.endswith(b"data: [DONE]\n\n")


class Reads:
    reads = False


class Writer:
    started = ending = False

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.scheduled: list[int] = []

    def schedule(self) -> None:
        self.scheduled.append(1)

    def plain_events(self, index: int) -> PlainEvents:
        return PlainEvents(set(), b"[", b"<", b"(", b">", b".")

    def around(self, events: PlainEvents) -> PlainEvents:
        return events


def begun(slow: Any, client: Any) -> tuple[PlainStream, list[bytes], list[int]]:
    plain, writer = PlainStream(slow), Writer()
    tokens = cast(ByteText, text().detokenizer())
    plain.begin(tokens, new_choice(), client, cast(Any, writer), cast(Any, writer))
    return plain, writer.waiting, writer.scheduled


def test_events_of_a_turn_are_scheduled_once() -> None:
    client = Client()
    plain, waiting, scheduled = begun(lambda message: pytest.fail("it is plain"), client)
    assert plain(chunk([300], 5, 0)) and plain(chunk([301, 302], 5, 0))
    assert len(waiting) == 2
    assert scheduled == [1]
    assert waiting[0].startswith(b'["') and waiting[0].endswith(b'">null.')
    assert waiting[1].startswith(b'<"') and waiting[1].endswith(b'">null.')


@pytest.mark.parametrize("takes", [True, False])
def test_what_a_client_does_not_read_goes_through_the_steps(takes: bool) -> None:
    slow: list[bytes] = []
    client = Reads()
    plain, waiting, _ = begun(lambda message: slow.append(message) or takes, client)
    assert plain(chunk([300], 5, 0)) is takes
    assert len(slow) == 1
    client.reads = True
    assert plain(chunk([300], 5, 0)) is True
    assert len(slow) == len(waiting) == 1
    plain.end()
    assert plain(chunk([300], 5, 0)) is takes
    assert len(slow) == 2


def test_an_error_of_the_steps_is_that_of_the_stream() -> None:
    def fail(message: bytes) -> bool:
        raise ValueError("no message")

    plain, _, _ = begun(fail, Client())
    with pytest.raises(ValueError, match="no message"):
        plain(b"\xff")
    with pytest.raises(TypeError):
        plain(cast(Any, None))
