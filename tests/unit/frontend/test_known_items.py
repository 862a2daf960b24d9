"""The prompt of a turn through Messages and Responses of which a beginning is known is that of the
whole request; and what would be refused is left to the way that says why."""

import asyncio
import copy
import json
import shutil
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chats.templates import CHANNELS, DATED, GROUPED, THINKING

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.anthropic import read_messages
from dynamo_router.frontend.engine_requests import _rendered, given_by, written_request
from dynamo_router.frontend.long_chats import known_beginnings
from dynamo_router.frontend.long_chats.chat_items import (
    MESSAGES_ITEMS,
    RESPONSES_ITEMS,
    ChatItems,
    ItemForm,
    ItemsApart,
)
from dynamo_router.frontend.long_chats.known_beginnings import KnownBeginnings, TemplateChecks
from dynamo_router.frontend.openai import ApiError, ChatApart, ChatRequest
from dynamo_router.frontend.processor import NO_TENANT, ModelText, PieceCache, Tenant
from dynamo_router.frontend.responses import read_responses
from dynamo_router.process.off_loop import OffLoop
from dynamo_router.router.prompt import Content, Prompt
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.dispatch import RequestReader, cut_items
from dynamo_router.workers.trtllm_proto import pb

BLOCK = 4
MOST = 1024
LAST_FIRST = (
    "{% set last = messages[-1] %}{% for m in messages %}<|start|>{{ m.role }}{{ m.content }}"
    "{{ m.reasoning_content }}{{ m.tool_calls | tojson if m.tool_calls }}{{ last.content }}"
    "<|end|>{% endfor %}"
)
TEMPLATES = {
    "grouped": GROUPED,
    "thinking": THINKING,
    "dated": DATED,
    "channels": CHANNELS,
    "the last one": LAST_FIRST,
}


class Form(NamedTuple):
    form: ItemForm
    read: Any
    key: str


FORMS = {
    "messages": Form(MESSAGES_ITEMS, read_messages, "messages"),
    "responses": Form(RESPONSES_ITEMS, read_responses, "input"),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ModelText]]:
    off_loop, made = OffLoop(), {}
    for name, template in TEMPLATES.items():
        folder: Path = tmp_path_factory.mktemp("model") / "model"
        shutil.copytree(OWN_MODEL, folder)
        (folder / "chat_template.jinja").write_text(template)
        made[name] = ModelText(folder, off_loop, PieceCache(1 << 20))
    yield made
    off_loop.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What adds little is kept, too, and every other turn is checked."""
    monkeypatch.setattr(known_beginnings, "LEAST_NEW_CHARS", 4)
    monkeypatch.setattr(known_beginnings, "CHECKED_OF", 2)


@cache
def beginnings_of(text: ModelText) -> KnownBeginnings:
    limits = CallerLimits(max_prompt_tokens=1 << 20)
    return KnownBeginnings(text, RequestReader(BLOCK, limits, off_loop=text._off_loop))


def whole(text: ModelText, api: Form, body: bytes) -> Any:
    """The ids of a body in the way of all others; None: it is refused."""
    try:
        chat: ChatRequest = api.read(body).chat
        assert text.template is not None
        rendered = _rendered(text.template, chat.messages, given_by(chat))
    except (ApiError, InvalidRequestError):
        return None
    return np.frombuffer(text._encode([rendered], False)[0], np.uint32)


async def known(text: ModelText, api: Form, body: bytes, tenant: Tenant = NO_TENANT) -> Any:
    """The prompt by what is known of it; None: it is for others to say."""
    found = cut_items(body, api.form.key, MOST, 1 << 20, api.form.has_marks)
    if found is None:
        return None
    apart = ItemsApart(api.form, *found)
    try:
        chat: ChatRequest = api.read(apart.rest, ChatApart).chat
    except ApiError:
        return None
    return await beginnings_of(text).prompt(apart, tenant, given_by(chat), chat.messages)


async def check(text: ModelText, api: Form, body: bytes, tenant: Tenant = NO_TENANT) -> bool:
    """Ids and hashes are those of the whole; whether there are any."""
    tokens, found = whole(text, api, body), await known(text, api, body, tenant)
    assert text.long_chats == "on"
    if tokens is None or not len(tokens):
        assert found is None
        return False
    assert found is not None
    asked = written_request("r", 7, b"", found, True)
    message = pb.GenerateRequest.FromString(asked.body)
    assert list(message.tokenized.input_token_ids) == tokens.tolist()
    prompt = Prompt(tokens, BLOCK, Content(cache_namespace=tenant.name))
    assert found.prompt.isl == len(tokens)
    assert found.prompt.sequence_hashes.tolist() == prompt.sequence_hashes.tolist()
    assert found.prompt.local_hashes.tolist() == prompt.local_hashes.tolist()
    return True


WORDS = 'a the of and, it. is\nyou 漢字 é 👩\u200d👧 {} " \\ \t <|start|> <|end|>'.split(" ")
TEXT = st.lists(st.sampled_from([*WORDS, "cache_control", "\u2028"]), max_size=12).map(" ".join)
MARK = st.sampled_from(
    [{}, {}, {"cache_control": {"type": "ephemeral"}}]
    + [{"cache_control": {"type": "ephemeral", "ttl": ttl}} for ttl in ("5m", "1h")]
    + [{"cache_control": None}]
)
BAD_MARK = st.sampled_from([{"cache_control": {"type": "x"}}, {"cache_control": 1}])
IDS = st.sampled_from(["c1", "c2", "c3"])
INPUT = st.one_of(
    st.dictionaries(st.sampled_from(["a", "cache_control", "type"]), TEXT, max_size=2),
    st.just({"cache_control": {"type": "ephemeral"}, "list": [{"cache_control": {"type": "e"}}]}),
)


def joined(*parts: Any) -> Any:
    return st.tuples(*parts).map(lambda pair: {**pair[0], **pair[1]})


def block(kind: str, **fields: Any) -> Any:
    return joined(st.fixed_dictionaries({"type": st.just(kind), **fields}), MARK)


USE = block("tool_use", id=IDS, name=st.just("f"), input=INPUT)
RESULT = block(
    "tool_result",
    tool_use_id=IDS,
    content=st.one_of(TEXT, st.lists(block("text", text=TEXT), max_size=2)),
)
THOUGHT = st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, TEXT)
IMAGE = st.just({"type": "image", "source": {"type": "base64", "data": ""}})


BAD_TEXT = joined(st.just({"type": "text", "text": "x"}), BAD_MARK)
BAD = st.one_of(IMAGE, joined(THOUGHT, MARK.filter(bool)), BAD_TEXT)


def rarely(bad: Any, good: Any) -> Any:
    return st.integers(0, 30).flatmap(lambda n: bad if not n else good)


def blocks(*kinds: Any) -> Any:
    return st.lists(rarely(BAD, st.one_of(block("text", text=TEXT), *kinds)), max_size=3)


TALK = st.one_of(
    st.builds(
        lambda content: [{"role": "user", "content": content}],
        st.one_of(TEXT, blocks(RESULT)),
    ),
    st.builds(
        lambda content, behind: [{"role": "assistant", "content": content}, *behind],
        st.one_of(TEXT, blocks(THOUGHT, USE)),
        st.sampled_from([[], [], [{"role": "user", "content": "and"}]]),
    ),
    st.builds(
        lambda use, result, name: [
            {"role": "assistant", "content": [{**use, "id": name}]},
            {"role": "user", "content": [{**result, "tool_use_id": name}]},
        ],
        USE, RESULT, IDS,
    ),
    st.builds(lambda text: [{"role": "system", "content": text}], TEXT),
)  # fmt: skip


def sealed(text: str) -> str:
    return f"dynamo-router:{b64encode(text.encode()).decode()}"


PARTS = st.lists(st.builds(lambda text: {"type": "input_text", "text": text}, TEXT), max_size=2)
ITEM = st.one_of(
    st.builds(
        lambda role, content: {"type": "message", "role": role, "content": content},
        st.sampled_from(["user", "user", "assistant", "assistant", "developer", "system"]),
        st.one_of(TEXT, PARTS),
    ),
    st.builds(
        lambda text: {"type": "reasoning", "summary": [], "encrypted_content": sealed(text)}, TEXT
    ),
    st.builds(
        lambda name, text: {
            "type": "function_call", "call_id": name, "name": "f",
            "arguments": json.dumps({"a": text}),
        },
        IDS, TEXT,
    ),
)  # fmt: skip
BAD_ITEM = st.sampled_from(
    [
        {"type": "reasoning", "encrypted_content": "of another server"},
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
        {"type": "function_call_output", "call_id": "none", "output": "x"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{"},
        {"type": "item_reference", "id": "x"},
    ]
)
ITEMS = st.one_of(
    st.lists(rarely(BAD_ITEM, ITEM), min_size=1, max_size=3),
    st.builds(
        lambda thought, name, text: [
            {"type": "reasoning", "summary": [], "encrypted_content": sealed(thought)},
            {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": name, "output": text},
        ],
        TEXT,
        IDS,
        TEXT,
    ),
)
TURNS = st.lists(
    st.tuples(
        st.sampled_from(["more", "more", "more", "again", "edited", "cut", "marked", "other",
                         "tenant", "dropped", "system"]),
        st.integers(0, 30),
    ),
    max_size=8,
)  # fmt: skip
MESSAGES_TOOL = {"name": "f", "input_schema": {"type": "object"}, "description": "the of"}
RESPONSES_TOOL = {"type": "function", "name": "f", "parameters": {}, "description": "the of"}
SYSTEMS = [
    None,
    "the of",
    [{"type": "text", "text": "it is", "cache_control": {"type": "ephemeral"}}],
]


def body_of(api: str, items: list[Any], system: int, tools: int, ascii: bool) -> bytes:
    if api == "messages":
        asked: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": items}
        if SYSTEMS[system] is not None:
            asked["system"] = SYSTEMS[system]
        tool = MESSAGES_TOOL
    else:
        asked = {"model": "m", "store": False, "input": items}
        if SYSTEMS[system] is not None:
            asked["instructions"] = ["", "the of", "it is"][system]
        tool = RESPONSES_TOOL
    if tools:
        asked["tools"] = [tool] * tools
    return json.dumps(asked, ensure_ascii=ascii).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("api", FORMS)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), turns=TURNS, system=st.integers(0, 2), ascii=st.booleans())
def test_the_prompt_is_that_of_the_whole_request(
    texts: dict[str, ModelText],
    api: str,
    name: str,
    data: st.DataObject,
    turns: list[tuple[str, int]],
    system: int,
    ascii: bool,
) -> None:
    """Whatever was added, edited, marked, cut off or dropped from the cache between turns."""
    text, more = texts[name], TALK if api == "messages" else ITEMS
    items, tools, tenant = list(data.draw(more)), 0, NO_TENANT

    async def converse() -> None:
        nonlocal items, tools, tenant, system
        await check(text, FORMS[api], body_of(api, items, system, tools, ascii), tenant)
        for kind, number in turns:
            if kind == "more":
                items += data.draw(more)
            elif kind == "edited":
                items[number % len(items)] = data.draw(more)[0]
            elif kind == "cut":
                del items[number % len(items) + 1 :]
            elif kind == "marked" and api == "messages":
                items = moved(items, number)
            elif kind == "other":
                tools = number % 3
            elif kind == "system":
                system = number % 3
            elif kind == "tenant":
                tenant = Tenant("", number % 3)
            elif kind == "dropped":
                for _ in range(min(number, len(text.pieces))):
                    text.pieces._drop()
            await check(text, FORMS[api], body_of(api, items, system, tools, ascii), tenant)

    asyncio.run(converse())
    assert text.pieces.checks["differs"] == text.pieces.checks["unsure"] == 0


def moved(messages: list[Any], number: int) -> list[Any]:
    """The same with marks at other places."""
    found = copy.deepcopy(messages)
    for at, message in enumerate(found):
        if isinstance(message["content"], list):
            for each in message["content"]:
                if each["type"] != "thinking":
                    each.pop("cache_control", None)
                if at == number % len(found):
                    each["cache_control"] = {"type": "ephemeral"}
    return found


def agents_turns(api: str, turns: int) -> list[Any]:
    """A conversation with calls, in the shape of an API."""
    items: list[Any] = []
    if api == "messages":
        items.append({"role": "user", "content": [{"type": "text", "text": "is it the of you"}]})
    else:
        items.append({"type": "message", "role": "user", "content": "is it the of you"})
    for turn in range(turns):
        text = f"the {turn} of {'and it ' * 600}."
        if api == "messages":
            blocks = [
                {"type": "thinking", "thinking": "is it", "signature": "s"},
                {"type": "tool_use", "id": f"c{turn}", "name": "f", "input": {"turn": turn}},
            ]
            result = {"type": "tool_result", "tool_use_id": f"c{turn}", "content": text}
            items.append({"role": "assistant", "content": blocks})
            items.append({"role": "user", "content": [result]})
        else:
            items.append({"type": "reasoning", "summary": [], "encrypted_content": sealed("is")})
            call = {"call_id": f"c{turn}", "name": "f", "arguments": '{"turn": 1}'}
            items.append({"type": "function_call", **call})
            items.append({"type": "function_call_output", "call_id": f"c{turn}", "output": text})
    return items


def marked(messages: list[Any]) -> list[Any]:
    """As Claude Code marks a turn: the last blocks of the last two messages."""
    found = copy.deepcopy(messages)
    for message in found[-2:]:
        if message["content"][-1]["type"] != "thinking":
            message["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return found


@pytest.mark.parametrize("api", FORMS)
@pytest.mark.parametrize("name", ["grouped", "thinking"])
async def test_a_turn_costs_what_is_new(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch, api: str, name: str
) -> None:
    """No known item is read again but for the last, wherever the marks are; nor is it encoded."""
    monkeypatch.setattr(TemplateChecks, "is_due", lambda self: False)
    text, items, step = texts[name], agents_turns(api, 60), 2 if api == "messages" else 3
    read, seen = [0], list[int]()

    def noting(encode: Any) -> Any:
        async def noted(each: str, *given: Any, **more: Any) -> Any:
            seen.append(len(each))
            return await encode(each, *given, **more)

        return noted

    def counted(turns: Any, at: int, raw: bytes) -> None:
        read[0] += 1
        FORMS[api].form.add(turns, at, raw)

    for each in ("encode", "encode_pieces"):
        monkeypatch.setattr(text, each, noting(getattr(text, each)))
    form = FORMS[api].form._replace(add=counted)
    here = FORMS[api]._replace(form=form)

    def body(count: int) -> bytes:
        shown = items[:count]
        return body_of(api, marked(shown) if api == "messages" else shown, 1, 2, False)

    await check(text, here, body(1 + 40 * step))
    for turn in range(41, 60):
        read[0] = 0
        seen.clear()
        assert await check(text, here, body(1 + turn * step))
        assert sum(seen) < 16_000 and read[0] < 9


BAD_BODIES = [
    b'{"role": "user", "content": "\\ud83d"}',
    b'{"role": "user", "content": "\\ud83d\\u0041"}',
    b'{"role": "user", "content": "\xff"}',
    b'{"role": "user", "content": "\xf0\x9f\x91"}',
    b'{"role": "user", "content": "a\tb"}',
    b'{"role": "user", "role": 1, "content": "a"}',
    b'{"role": 1, "role": "user", "content": "a"}',
    b'{"r\\u006fle": "user", "content": "a"}',
    b'{"role": "user", "content": "a", "more": 1}',
    b'{"role": "user"}',
    b'{"role": "user", "content": 1}',
    b'{"role": "user", "content": [1]}',
    b'{"role": "user", "content": [{"type": "text", "text": "a", "text": "b"}]}',
    b'{"role": "user", "content": [{"type": "text", "text": "a"},]}',
    b'{"role": "user", "content": [{"type": "input_text", "text": "a"}]}',
    b'{"role": "user", "content": [], "content": "a"}',
    b'{"type": "item_reference", "id": "x"}',
    b'{"role": "assistant", "content": "a"}',
    b'{"role": "assistant", "content": []}',
    b'{"role": "system", "content": "a"}',
    b'{"role": "user", "content": []}',
    b"{}",
]


@pytest.mark.parametrize("api", FORMS)
@pytest.mark.parametrize("item", BAD_BODIES)
async def test_what_is_odd_is_read_or_refused_as_in_a_whole_request(
    texts: dict[str, ModelText], api: str, item: bytes
) -> None:
    """Wherever it stands, and whatever is known before it and behind it."""
    text, good = texts["grouped"], [json.dumps(each).encode() for each in agents_turns(api, 2)]
    head = b'{"model": "m", "max_tokens": 5, "messages": ['
    if api == "responses":
        head = b'{"model": "m", "input": ['
    await check(text, FORMS[api], head + b", ".join(good) + b"]}")
    for at in range(len(good) + 1):
        items = [*good[:at], item, *good[at:]]
        for count in (len(items), at + 1):
            for _ in range(2):
                await check(text, FORMS[api], head + b", ".join(items[:count]) + b"]}")


@pytest.mark.parametrize("api", FORMS)
async def test_as_many_items_as_are_taken_apart(texts: dict[str, ModelText], api: str) -> None:
    text, items = texts["grouped"], agents_turns(api, 1) * 500
    for count in (MOST - 2, MOST):
        shown = items[:count]
        shown = shown if shown[-1].get("role") != "assistant" else shown[:-1]
        assert await check(text, FORMS[api], body_of(api, shown, 1, 1, False))
    many = body_of(api, items[: MOST + 3], 1, 1, False)
    assert cut_items(many, FORMS[api].form.key, MOST, 1 << 20, False) is None


async def test_more_messages_or_calls_than_a_chat_may_have(texts: dict[str, ModelText]) -> None:
    """Which few items make."""
    text, api = texts["grouped"], FORMS["messages"]
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "a"}
    calls = [{"role": "assistant", "content": [use] * 600}]
    results = [{"role": "user", "content": [result] * 2000}]
    begun = [*calls, *results]
    assert await check(text, api, body_of("messages", begun, 0, 0, False))
    assert await check(text, api, body_of("messages", begun + results, 0, 0, False))
    assert not await check(text, api, body_of("messages", begun + results * 2, 0, 0, False))
    assert not await check(text, api, body_of("messages", calls * 2 + results, 0, 0, False))


def test_no_known_item_is_read_before_it_is_asked_for() -> None:
    body = body_of("responses", agents_turns("responses", 3), 1, 0, False)
    found = cut_items(body, b"input", MOST, 1 << 20, False)
    assert found is not None
    apart = ItemsApart(RESPONSES_ITEMS, *found)
    lead = [{"role": "system", "content": "the of"}]
    fresh = ChatItems(apart, known_beginnings.KnownItems(0, (), (), False), lead)
    assert fresh.starts == [0, 0, 1, 3, 4, 6, 7, 9] and fresh.settled == 8
    known_all = known_beginnings.KnownItems(10, fresh.starts, (), False)
    again = ChatItems(apart, known_all, lead)
    assert again.messages == []
    assert [again.message(at) for at in range(8)] == fresh.messages


def test_an_item_that_makes_many_messages_is_read_once() -> None:
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "a"}
    items = [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result] * 50},
        {"role": "user", "content": "a"},
    ]
    found = cut_items(body_of("messages", items, 0, 0, False), b"messages", MOST, 1 << 20, True)
    assert found is not None
    read = list[int]()

    def counted(turns: Any, at: int, raw: bytes) -> None:
        read.append(at)
        MESSAGES_ITEMS.add(turns, at, raw)

    apart = ItemsApart(MESSAGES_ITEMS._replace(add=counted), *found)
    known_two = known_beginnings.KnownItems(2, [0, *[1] * 50], (), False)
    again = ChatItems(apart, known_two, [])
    assert [again.message(at)["role"] for at in range(1, 51)] == ["tool"] * 50
    assert read == [2, 1]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("api", FORMS)
async def test_a_request_that_comes_again_ends_with_a_message_of_several_items(
    texts: dict[str, ModelText], api: str, name: str
) -> None:
    """And one that goes on with that message."""
    role, text = "system" if api == "messages" else "developer", texts[name]
    items = [{"role": role, "content": f"{word} of the and"} for word in ("it", "is", "you")]
    if api == "responses":
        items += [
            {"type": "reasoning", "summary": [], "encrypted_content": sealed("the of and it")},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        ]
    for count in range(1, len(items) + 1):
        for _ in range(2):
            await check(text, FORMS[api], body_of(api, items[:count], 1, 0, False))
