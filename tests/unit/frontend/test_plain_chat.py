"""A plain chat gets by its short way what it gets by the way of all others."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from dynamo_router.base.errors import StatusCode
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.base.limit_hits import LimitHits
from dynamo_router.base.request_record import RequestRecord, set_record
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend import completions, origin, plain_chat
from dynamo_router.frontend.completions import CHAT_ROUTE, Completions
from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.frontend.long_chats import known_beginnings
from dynamo_router.frontend.long_chats.chat_items import CHAT_ITEMS, ItemsApart
from dynamo_router.frontend.openai import ApiError, ChatRequest, read_request
from dynamo_router.frontend.origin import LOUD_HEADERS
from dynamo_router.frontend.plain_chat import PlainChat, PlainChats
from dynamo_router.frontend.processor import ModelText, PieceCache
from dynamo_router.process.off_loop import OffLoop
from dynamo_router.router.pairs import PairDecision
from dynamo_router.router.policy import Decision
from dynamo_router.server.access import ANONYMOUS
from dynamo_router.server.call_limits import CallLimits
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.dispatch import RequestReader, cut_items
from dynamo_router.transport.http1 import Client, HttpCall
from dynamo_router.workers.engine_facts import EngineFacts
from dynamo_router.workers.failures import EngineCallError, Origin
from dynamo_router.workers.prompt_limits import PromptLimits
from dynamo_router.workers.trtllm_proto import pb


class Engine:
    """In place of a dispatcher: gives these messages, then fails if it is to."""

    def __init__(self, reader: RequestReader, messages: list[bytes], fails: bool) -> None:
        self.reader, self._messages, self._fails = reader, messages, fails
        self.asked: list[Any] = []

    async def generate(self, request: Any, respond: Any, *, put: Any, **more: Any) -> PairDecision:
        body, facts = request.body, request.facts
        self.asked.append(
            (body, replace(facts, prompt=self._hashes(facts.prompt)), facts.prompt.cache_namespace)
            + tuple(more.get(name) or None for name in ("metadata", "pinned", "session", "timeout"))
            + tuple(more[name] for name in ("call_metadata", "caller", "stops_held"))
        )
        for number, message in enumerate(self._messages):
            if not put(message):
                await respond(message)
            if number % 2:
                await asyncio.sleep(0)
        if self._fails:
            raise EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, "it broke")
        return PairDecision(Decision(WorkerWithDpRank(1, 0), 0, 0, 1, 0))

    @staticmethod
    def _hashes(prompt: Any) -> Any:
        return prompt.local_hashes.tolist(), prompt.sequence_hashes.tolist()

    async def finish(self, request_id: str, caller: Any) -> None: ...


class Monitor:
    any_ready = True
    facts = EngineFacts(model_id="m", max_seq_len=400, vocab_size=5000)
    limits = PromptLimits({1: facts})


class Output:
    """What a client gets."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def begin(self, status: int, headers: Any, lines: bytes = b"") -> None:
        self.sent.append((status, headers, lines))

    def write(self, data: bytes, *, more: bool = True) -> None:
        self.sent.append(data)

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))


class Told(NamedTuple):
    """All that is to be seen of one call."""

    sent: list[Any]
    error: Any
    asked: list[Any]
    record: dict[str, Any]


@cache
def text() -> ModelText:
    return ModelText(OWN_MODEL, OffLoop(), PieceCache(1 << 20))


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    text()._off_loop.close()
    text.cache_clear()


@pytest.fixture(autouse=True)
def same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_beginnings, "LEAST_NEW_CHARS", 4)
    for module in (origin, plain_chat):
        monkeypatch.setattr(module, "new_answer_id", lambda prefix, given: f"{prefix}{given}")
    for module in (completions, plain_chat):
        monkeypatch.setattr(module.time, "time", lambda: 1.7e9)


async def told(
    body: bytes,
    headers: dict[str, str],
    messages: list[bytes],
    *,
    fails: bool = False,
    reads: bool = True,
    is_plain: bool = True,
    apart: bool = False,
) -> Told:
    reader = RequestReader(16, off_loop=text()._off_loop)
    engine, output, client = Engine(reader, messages, fails), Output(), Client()
    client.output = cast(Any, output)
    record = RequestRecord()
    set_record(record)
    calls = CallLimits(CallerLimits(), LimitHits())
    made = Completions(
        cast(Any, engine), cast(Any, Monitor()), reader, text(), FrontendConfig(), "m", calls=calls
    )
    if not is_plain:
        made._plain = None
    if not reads:
        client.on_full()
        asyncio.get_running_loop().call_later(0, client.on_drained)
    call = HttpCall(ANONYMOUS, "/", headers, body, "r-1", output.send, client)
    if apart and (found := cut_items(body, b"messages", 64, 1 << 16, False)) is not None:
        call = replace(call, items=ItemsApart(CHAT_ITEMS, *found))
    error: Any = None
    try:
        await made.routes[CHAT_ROUTE](call)
    except (ApiError, EngineCallError) as found:
        error = (type(found), str(found), getattr(found, "body", None))
    generation = None if record.generation is None else record.generation()
    if generation is not None:
        generation = generation._replace(first_at=generation.first_at is not None)
    kept = asdict(record)
    del kept["began"]
    return Told(output.sent, error, engine.asked, {**kept, "generation": generation})


def chunk(ids: list[int], prompt: int) -> bytes:
    response = pb.GenerateResponse()
    response.chunk.token_ids.extend(ids)
    response.chunk.prompt_tokens, response.chunk.cached_tokens = prompt, 2
    return cast(bytes, response.SerializeToString())


def complete(ids: list[int], reason: str, stop: str) -> bytes:
    response = pb.GenerateResponse()
    response.complete.output_token_ids.extend(ids)
    response.complete.finish_reason, response.complete.matched_stop_str = reason, stop
    response.complete.prompt_tokens = 5
    return cast(bytes, response.SerializeToString())


IDS = st.lists(st.integers(0, 4200), max_size=5)
MESSAGES = st.lists(
    st.one_of(
        st.builds(chunk, IDS, st.integers(0, 9)),
        st.builds(chunk, IDS, st.integers(0, 9)),
        st.builds(complete, IDS, st.sampled_from(["stop", "length"]), st.sampled_from(["", "x"])),
    ),
    max_size=8,
)
WORDS = st.lists(st.sampled_from(["a ", "the ", "of ", "é", "漢", "x\n"]), max_size=9).map("".join)
ROLE = st.sampled_from(["user", "system", "assistant"])
CHAT = st.lists(st.fixed_dictionaries({"role": ROLE, "content": WORDS}), min_size=1, max_size=4)
CALL = st.builds(
    lambda name, arguments: {"function": {"name": name, "arguments": arguments}},
    st.sampled_from(["f", 1]),
    st.sampled_from(['{"a": 1}', "", "{", {"b": 2}]),
)
PARTS = st.lists(
    st.builds(
        lambda text: {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}},
        st.one_of(WORDS, WORDS, WORDS, st.none()),
    ),
    max_size=3,
)
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": ROLE, "content": WORDS}),
    st.fixed_dictionaries({"role": ROLE, "content": PARTS}),
    st.fixed_dictionaries(
        {"role": st.sampled_from(["assistant", "tool", 3]), "content": st.none() | WORDS},
        optional={"tool_calls": st.lists(CALL, max_size=2), "name": WORDS, "tool_call_id": WORDS},
    ),
)
AGENTS_CHAT = st.lists(MESSAGE, min_size=1, max_size=4)
NUMBERS = st.sampled_from([None, -3, -1, 0, 0.5, 1, 2, 2.5, 300, 500, 1 << 31, "1"])
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    name: NUMBERS
    for name in PlainChat.__struct_fields__
    if name not in ("model", "messages", "stream", "stream_options", "user", "ignore_eos")
}
OPTIONS |= {
    "stream_options": st.sampled_from(
        [None, {}, {"include_usage": True}, {"continuous_usage_stats": True}]
    ),
    "ignore_eos": st.booleans(),
    "user": st.sampled_from([None, "me", 3]),
    "cache_salt": st.sampled_from([None, "", "s", "a"]),
    "unknown": st.just(1),
    "stop": st.sampled_from([None, "ab", []]),
    "logprobs": st.booleans(),
    "seed": st.sampled_from([None, 5]),
    "verbosity": st.sampled_from(["low", "medium"]),
    "stream": st.sampled_from([True, False, False, None]),
    "tools": st.sampled_from([None, [], [{"type": "function", "function": {"name": "f"}}], [{}]]),
    "tool_choice": st.sampled_from([None, "none", "none", "auto"]),
    "chat_template_kwargs": st.sampled_from([None, {}, {"bos_token": "the"}]),
    "documents": st.sampled_from([None, [], [{"a": 1}]]),
    "reasoning_effort": st.sampled_from([None, "low"]),
    "add_generation_prompt": st.booleans(),
    "nvext": st.sampled_from([{}, {"token_data": [3, 4]}]),
}
SOME = st.lists(st.sampled_from(sorted(OPTIONS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: OPTIONS[name] for name in names})
)
HEADERS = st.dictionaries(
    st.sampled_from(["host", "user-agent", "x-tenant-id", "x-dynamo-explain"]),
    st.sampled_from(["1", "a"]),
    max_size=2,
)


@settings(max_examples=100, deadline=None)
@given(
    CHAT | AGENTS_CHAT,
    SOME,
    HEADERS,
    MESSAGES,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_both_ways_tell_the_same(
    chat: list[Any],
    some: dict[str, Any],
    headers: dict[str, str],
    messages: list[bytes],
    fails: bool,
    reads: bool,
    stream: bool,
    apart: bool,
) -> None:
    """Whatever is asked for, and whether the messages are apart, as those of long bodies are."""
    body = json.dumps({"model": "m", "messages": chat, "stream": stream, **some}).encode()

    async def both() -> None:
        more: dict[str, Any] = {"fails": fails, "reads": reads}
        long = await told(body, headers, messages, is_plain=False, **more)
        for _ in range(1 + apart):  # the second time a beginning of the messages is known
            assert await told(body, headers, messages, **more, apart=apart) == long

    asyncio.run(both())


@settings(max_examples=200, deadline=None)
@given(CHAT, SOME)
def test_what_is_plain_is_a_request_that_asks_for_nothing_else(
    chat: list[Any], some: dict[str, Any]
) -> None:
    body = json.dumps({"model": "m", "messages": chat, "stream": True, **some}).encode()
    try:
        plain = msgspec.json.decode(body, type=PlainChat)
    except msgspec.ValidationError:
        return
    request: ChatRequest = read_request(body, ChatRequest)
    usual = ChatRequest(model="", messages=[])
    for name in ChatRequest.__struct_fields__:
        asked = getattr(request, name)
        if name in PlainChat.__struct_fields__:
            assert asked == getattr(plain, name)
        else:
            assert asked == getattr(usual, name)
    for name in ("output_limit", "limit_field", "prompt_field", "min_tokens", "choices"):
        assert getattr(request, name) == getattr(plain, name)


BODY = {"model": "m", "messages": [{"role": "user", "content": "a the"}], "stream": True}


def spied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call that comes is plain."""
    found: list[bool] = []
    begin = PlainChats.begin

    def noted(self: PlainChats, call: HttpCall) -> Any:
        plain = begin(self, call)
        found.append(plain is not None)
        return plain

    monkeypatch.setattr(PlainChats, "begin", noted)
    return found


@pytest.mark.parametrize(
    "some",
    [
        {},
        {"max_tokens": 5},
        {"temperature": 0, "top_p": 1, "ignore_eos": True},
        {"stream_options": {"include_usage": True}},
        {"n": 1, "user": "me"},
        {"cache_salt": ""},
    ],
)
async def test_usual_chats_are_plain(monkeypatch: pytest.MonkeyPatch, some: Any) -> None:
    body, found = json.dumps({**BODY, **some}).encode(), spied(monkeypatch)
    for _ in range(2):  # its words are not known the first time
        await told(body, {"host": "a"}, [complete([5], "stop", "")])
    assert found[-1]


@pytest.mark.parametrize(
    "some, headers",
    [
        *(({name: value}, {}) for name, value in [("seed", 2), ("n", 2), ("stop", "x")]),
        *(({name: value}, {}) for name, value in [("tools", []), ("seed", 1), ("nvext", {})]),
        *(({}, {name: "1"}) for name in sorted(LOUD_HEADERS)),
        ({"cache_salt": "s"}, {}),
        ({}, {"x-tenant-id": "t"}),
    ],
)
async def test_what_asks_for_more_is_not_plain(
    monkeypatch: pytest.MonkeyPatch, some: Any, headers: dict[str, str]
) -> None:
    body = json.dumps({**BODY, **some}).encode()
    await told(json.dumps(BODY).encode(), {}, [])
    found = spied(monkeypatch)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Completions, "_answer_chat", nothing)
        await told(body, headers, [])
    assert found == [False]


async def test_a_long_chat_of_a_namespace_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    found = spied(monkeypatch)
    for some, headers in (({"cache_salt": "s"}, {}), ({}, {"x-tenant-id": "t"})):
        body = json.dumps({**BODY, **some}).encode()
        long = await told(body, headers, [], is_plain=False, apart=True)
        assert await told(body, headers, [], apart=True) == long
        assert long.asked[0][2] is not None
    assert found == [True, True]


async def nothing(*given: object) -> None: ...


async def test_settings_of_few_kinds_of_requests_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = RequestReader(16, off_loop=text()._off_loop)
    engine = Engine(reader, [complete([5], "stop", "")], fails=False)
    about: Any = completions.Completions(
        cast(Any, engine), cast(Any, Monitor()), reader, text(), FrontendConfig(), "m",
        calls=CallLimits(CallerLimits(), LimitHits()),
    )  # fmt: skip
    plain = about._plain
    for number in itertools.chain(range(300), range(300)):
        body = json.dumps({**BODY, "temperature": number / 300}).encode()
        output, client = Output(), Client()
        client.output = cast(Any, output)
        await about.routes[CHAT_ROUTE](HttpCall(ANONYMOUS, "/", {}, body, "r", output.send, client))
        assert len(plain._settings) <= plain_chat.MOST_KEPT
    assert len({asked[0] for asked in engine.asked}) == 300
