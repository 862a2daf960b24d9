"""The prompt of a chat of which a beginning is known is that of the whole chat, made anew."""

import asyncio
import itertools
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.engine_requests import (
    HashedPrompt,
    _rendered,
    given_by,
    written_request,
)
from dynamo_router.frontend.long_chats import known_beginnings
from dynamo_router.frontend.long_chats.chat_items import (
    CHAT_ITEMS,
    MOST_ITEMS,
    MOST_REST,
    ItemsApart,
    items_apart,
)
from dynamo_router.frontend.long_chats.known_beginnings import KnownBeginnings
from dynamo_router.frontend.openai import LONG_BODY, ChatRequest
from dynamo_router.frontend.processor import NO_TENANT, ModelText, PieceCache, Tenant
from dynamo_router.process.off_loop import OffLoop
from dynamo_router.router.prompt import Content, Prompt
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.dispatch import RequestReader, cut_items
from dynamo_router.workers.trtllm_proto import pb

BLOCK = 4
TEMPLATES = {
    "plain": (
        "<|start|>{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    ),
    "stripped": (
        "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    ),
    "no marks": "{% for m in messages %} {{ m['role'] }} {{ m['content'] }}{% endfor %}",
    "the first again": (
        "{% for m in messages %}<|start|>{{ m['content'] }}{% endfor %}{{ messages[0]['content'] }}"
    ),
    "the last first": (
        "{{ messages[-1]['content'] }}"
        "{% for m in messages %}<|start|>{{ m['content'] }}{% endfor %}"
    ),
    "tools": (
        "{% if tools %}<|start|>{{ tools | tojson }}<|end|>{% endif %}"
        "{% for m in messages %}<|start|>{{ m['role'] }}: {{ m['content'] or '' }}"
        "{% for call in m.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}"
        "{% if loop.last %}.{% endif %}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    ),
    "reasoning": (
        "{% set ns = namespace(looking=true, last=messages | length - 1) %}"
        "{%- for m in messages[::-1] %}{%- set index = (messages | length - 1) - loop.index0 %}"
        "{%- if ns.looking and m.role == 'user' %}{%- set ns.looking = false %}"
        "{%- set ns.last = index %}{%- endif %}{%- endfor %}"
        "{% for m in messages %}<|start|>{{ m.role }} "
        "{% if loop.index0 > ns.last %}{{ m.reasoning_content }}{% endif %}{{ m.content }}<|end|>"
        "{% endfor %}"
    ),
    "dated": (
        "{{ strftime_now('%A') }}{% for m in messages %}<|start|>{{ m['content'] }}<|end|>"
        "{% endfor %}"
    ),
    "its length": (
        "{% if messages | length > 3 %}long {% endif %}{% for m in messages %}"
        "<|end|>{{ m['content'] }}{% endfor %}"
    ),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ModelText]]:
    """Models of one tokenizer and these templates, which keep what they know apart."""
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
    """What adds little is kept, too."""
    monkeypatch.setattr(known_beginnings, "LEAST_NEW_CHARS", 4)


def apart(body: bytes) -> ItemsApart:
    found = cut_items(body, b"messages", MOST_ITEMS, 1 << 20, False)
    assert found is not None
    return ItemsApart(CHAT_ITEMS, *found)


def a_reader(text: ModelText, most: int = 1 << 20) -> RequestReader:
    return RequestReader(BLOCK, CallerLimits(max_prompt_tokens=most), off_loop=text._off_loop)


async def known(
    text: ModelText, body: bytes, tenant: Tenant = NO_TENANT, reader: RequestReader | None = None
) -> HashedPrompt | None:
    beginnings = KnownBeginnings(text, reader or a_reader(text))
    parts = apart(body)
    request: ChatRequest = msgspec.json.decode(parts.rest, type=ChatRequest)
    return await beginnings.prompt(parts, tenant, given_by(request))


async def check(text: ModelText, body: bytes, tenant: Tenant = NO_TENANT) -> None:
    """Ids, their largest and hashes are those of the whole chat."""
    found = await known(text, body, tenant)
    request: ChatRequest = msgspec.json.decode(body, type=ChatRequest)
    assert text.template is not None and found is not None
    rendered = _rendered(text.template, request.messages, given_by(request))
    ids = text._encode([rendered], False)[0]
    tokens = np.frombuffer(ids, np.uint32)
    asked = written_request("r", 7, b"", found, True)
    message = pb.GenerateRequest.FromString(asked.body)
    assert list(message.tokenized.input_token_ids) == tokens.tolist()
    assert asked.facts.largest_token == tokens.max() and asked.facts.prompt.isl == len(tokens)
    whole = Prompt(tokens, BLOCK, Content(cache_namespace=tenant.name))
    assert asked.facts.prompt.cache_namespace == whole.cache_namespace
    assert asked.facts.prompt.local_hashes.tolist() == whole.local_hashes.tolist()
    assert asked.facts.prompt.sequence_hashes.tolist() == whole.sequence_hashes.tolist()


WORDS = 'a the of and, it. is\nyou 漢字 é 👩\u200d👧 naïve e\u0301 x1 {} " \\ \t'.split(" ")
MARKS = ["<|start|>", "<|end|>", "<|st", "art|>", "\u2028", "\x1f", "\\u00e9", "'s", "ﷺ", "한국"]
WORD = st.sampled_from([*WORDS, *MARKS, " ", "  ", "\n\n"])
CONTENT = st.lists(WORD, max_size=30).map(" ".join).filter(lambda text: not text.isspace())
PLAIN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant"]), "content": CONTENT}
)
CALL = CONTENT.map(lambda text: {"function": {"name": "f", "arguments": json.dumps({"a": text})}})
PART = CONTENT.map(lambda text: {"type": "text", "text": text, "cache_control": {"type": "e"}})
MESSAGE = st.one_of(
    PLAIN,
    PLAIN,
    st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(PART, max_size=3)}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | CONTENT},
        optional={"tool_calls": st.lists(CALL, max_size=2), "reasoning_content": CONTENT},
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "content": CONTENT, "name": CONTENT}),
)
TOOLS = [{"type": "function", "function": {"name": "f", "description": "the of and"}}]
GIVEN = st.sampled_from([{}, {}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}])
TURN = st.one_of(
    st.tuples(st.just("said"), st.lists(MESSAGE, min_size=1, max_size=3)),
    st.tuples(st.just("said"), st.lists(MESSAGE, min_size=1, max_size=3)),
    st.tuples(st.just("again"), st.none()),
    st.tuples(st.just("edited"), st.tuples(st.integers(0, 20), CONTENT)),
    st.tuples(st.just("cut"), st.integers(1, 20)),
    st.tuples(st.just("longer"), st.tuples(st.integers(0, 20), CONTENT)),
    st.tuples(st.just("dropped"), st.integers(1, 30)),
    st.tuples(st.just("other tenant"), st.sampled_from([None, 1, 2])),
)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(
    first=st.lists(MESSAGE, min_size=1, max_size=4),
    turns=st.lists(TURN, max_size=8),
    ascii=st.booleans(),
    more=GIVEN,
)
def test_the_prompt_is_that_of_the_whole_chat(
    texts: dict[str, ModelText],
    name: str,
    first: list[Any],
    turns: list[Any],
    ascii: bool,
    more: dict[str, Any],
) -> None:
    """Whatever was said, edited, cut off or dropped from the cache between turns."""
    text, messages, tenant = texts[name], list(first), NO_TENANT
    cache = text.pieces

    async def converse() -> None:
        nonlocal tenant
        await say()
        for kind, what in turns:
            if kind == "said":
                messages.extend(what)
            elif kind == "edited":
                messages[what[0] % len(messages)]["content"] = what[1]
            elif kind == "longer":
                message = messages[what[0] % len(messages)]
                message["content"] = f"{message['content']}{what[1]}"
            elif kind == "cut":
                del messages[what % len(messages) + 1 :]
            elif kind == "dropped":
                for _ in range(min(what, len(cache))):
                    cache._drop()
            elif kind == "other tenant":
                tenant = Tenant("", what)
            await say()

    async def say() -> None:
        body = json.dumps({"model": "m", "messages": messages, **more}, ensure_ascii=ascii)
        await check(text, body.encode(), tenant)

    messages[:] = [dict(message) for message in messages]
    asyncio.run(converse())


def conversation(turns: int, words: int = 3000) -> list[dict[str, str]]:
    found = [{"role": "system", "content": f"it is you and the {'of ' * words}"}]
    for turn in range(turns):
        found.append({"role": "user", "content": f"the {turn} of {'and it ' * 600}."})
        found.append({"role": "assistant", "content": f"is {turn} {'you the ' * 20}."})
    return found


def body_of(messages: list[dict[str, str]], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def seen(text: ModelText, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long texts are that are asked the tokenizer, or the cache, for."""
    found: list[int] = []

    def noting(encode: Any) -> Any:
        async def noted(each: str, *given: Any, **more: Any) -> Any:
            found.append(len(each))
            return await encode(each, *given, **more)

        return noted

    wrap_encoding(monkeypatch, text, noting)
    return found


def wrap_encoding(patched: pytest.MonkeyPatch, text: ModelText, wrap: Any) -> None:
    for name in ("encode", "encode_pieces"):
        patched.setattr(text, name, wrap(getattr(text, name)))


def drop_meanwhile(patched: pytest.MonkeyPatch, text: ModelText) -> None:
    """While a text is encoded, all that is kept of texts goes."""

    def dropping(encode: Any) -> Any:
        async def drops(*given: Any, **more: Any) -> Any:
            while len(text.pieces):
                text.pieces._drop()
            return await encode(*given, **more)

        return drops

    wrap_encoding(patched, text, dropping)


async def test_a_turn_costs_what_is_new(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, talk = texts["plain"], conversation(6)
    found = seen(text, monkeypatch)
    for count in range(2, len(talk) + 1, 2):
        found.clear()
        await check(text, body_of(talk[:count]))
        assert sum(found) < (14_000 if count == 2 else 5_500)
    # One that goes on from an earlier turn, and one whose message was edited in the middle.
    for changed in (4, 8):
        talk[changed] = {"role": "user", "content": "other words " * 300}
        found.clear()
        await check(text, body_of(talk[: changed + 1]))
        assert sum(found) < 5_500 + 8_000 * (changed == 8)


def agents_chat(turns: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = conversation(0)
    found.append({"role": "user", "content": [{"type": "text", "text": "is it the of you"}]})
    for turn in range(turns):
        call = {"function": {"name": "f", "arguments": json.dumps({"turn": turn})}}
        found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        found.append({"role": "tool", "content": f"the {turn} of {'and it ' * 600}."})
    return found


@pytest.mark.parametrize("name", ["stripped", "no marks", "tools", "reasoning", "its length"])
@pytest.mark.parametrize("make", [conversation, agents_chat])
async def test_a_turn_of_many_messages_costs_what_is_new(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch, name: str, make: Any
) -> None:
    """No known message is read, written or encoded again, but for those that a template asks for
    again and the last, which may be written in another way then."""
    text, talk = texts[name], make(120)
    asked = {"tools": TOOLS} if name == "tools" else {}
    while len(text.pieces):
        text.pieces._drop()
    assert text.template is not None
    rendered, render = [0], text.template.grow

    def noted(count: int, read: Any, *given: Any, **more: Any) -> Any:
        def counted(number: int) -> Any:
            rendered[0] += 1
            return read(number)

        return render(count, counted, *given, **more)

    monkeypatch.setattr(text.template, "grow", noted)
    await check(text, body_of(talk[:200], **asked))
    found = seen(text, monkeypatch)
    for count in (202, 206, 210):
        found.clear()
        rendered[0] = 0
        await check(text, body_of(talk[:count], **asked))
        assert sum(found) < 16_000 and rendered[0] < 9
    talk[150] = {"role": "user", "content": "other words " * 300}
    await check(text, body_of(talk, **asked))


async def test_no_other_namespace_or_block_size_finds_it(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, body = texts["plain"], body_of(conversation(2))
    found = seen(text, monkeypatch)
    for tenant in (Tenant("a", 5), Tenant("b", 6), Tenant("c", None)):
        found.clear()
        await check(text, body, tenant)
        if tenant.namespace is not None:
            assert sum(found) > 10_000
        found.clear()
        await check(text, body, tenant)
        assert sum(found) < 6_000  # at most the last turn
    found.clear()
    other = RequestReader(BLOCK * 2, off_loop=text._off_loop)
    assert await known(text, body, Tenant("c", None), other) is not None and sum(found) > 10_000
    found.clear()
    await check(text, body, Tenant("d", None))  # another account, of no namespace of its own
    assert sum(found) < 6_000


async def test_what_it_takes_is_counted_and_bounded(texts: dict[str, ModelText]) -> None:
    text = texts["no marks"]
    cache = text.pieces
    while len(cache):
        cache._drop()
    talk = conversation(20)
    for count in range(1, len(talk) + 1, 2):
        await check(text, body_of(talk[:count]))
    chars = sum(len(message["content"]) for message in talk)
    parts = [each for share in cache._shares.values() for each in share.pieces.values()]
    kept = {id(part): part for part in parts if isinstance(part, known_beginnings.Beginning)}
    assert len(kept) == 21 and cache.size < 4 * chars
    assert cache.size >= sum(map(len, kept.values()))
    cache.most_bytes = cache.size // 2  # it is kept to when something is added
    try:
        for count in range(1, len(talk) + 1, 2):
            await check(text, body_of([*talk[:count], *conversation(1, 99)]))
            assert cache.size <= cache.most_bytes
    finally:
        cache.most_bytes = 1 << 20


async def test_its_pieces_are_found_in_it_and_kept_once(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation that begins in another way finds what it has in common with one that is known;
    what was kept by itself goes when a beginning has it."""
    text, talk = texts["stripped"], conversation(4)
    cache, draw = text.pieces, random.Random(0)
    while len(cache):
        cache._drop()
    shared = " ".join("".join(draw.choices("abcdeé", k=5)) for _ in range(5_000))
    talk[1] = {"role": "user", "content": shared}
    await text.encode(f"of {shared}", add_special_tokens=False)
    alone = len(cache)
    assert alone > 5
    for count in (2, 4, 6):
        await check(text, body_of(talk[:count]))
    assert len(cache) <= 3 + 2
    talk[0] = {"role": "system", "content": "you and the other words"}
    before = cache.encoded_chars
    await check(text, body_of(talk[:2]))
    assert cache.encoded_chars < before + len(shared) // 3
    while len(cache):
        cache._drop()
    assert cache.size == 0 and not cache._wholes


async def test_cancelled_in_the_middle_it_keeps_nothing_half_made(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, talk = texts["stripped"], conversation(3)
    await check(text, body_of(talk[:3]))
    for stop in range(4):  # at each step that waits
        calls = itertools.count()

        def stopping(encode: Any, stop: int = stop, calls: Any = calls) -> Any:
            async def stops(*given: Any, **more: Any) -> Any:
                if next(calls) >= stop:
                    raise asyncio.CancelledError
                return await encode(*given, **more)

            return stops

        with pytest.MonkeyPatch.context() as patched:
            wrap_encoding(patched, text, stopping)
            if stop < 2:
                with pytest.raises(asyncio.CancelledError):
                    await known(text, body_of(talk[:5]))
        await check(text, body_of(talk[:5]))
        await check(text, body_of(talk))
        while len(text.pieces):
            text.pieces._drop()


async def test_a_repeated_turn_that_was_dropped_meanwhile_is_no_circle(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own beginning goes while its prompt is made."""
    text, body = texts["plain"], body_of(conversation(1))
    await check(text, body)
    with pytest.MonkeyPatch.context() as patched:
        drop_meanwhile(patched, text)
        patched.setattr(text, "last_cut", lambda whole, end: end - 1)
        await known(text, body)
    async with asyncio.timeout(10):
        await check(text, body)


async def test_what_goes_on_from_one_that_was_dropped_is_kept_anew(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, talk, found = texts["plain"], conversation(3), seen(texts["plain"], monkeypatch)
    cache = text.pieces
    while len(cache):
        cache._drop()
    for count in (3, 5):
        await check(text, body_of(talk[:count]))
    first = next(key for key, share in cache._shares.items() if is_first(share.pieces[key]))
    cache.forget(first)
    for most in (100_000, 2_000):
        found.clear()
        await check(text, body_of(talk[:5]))
        assert sum(found) < most
    while len(cache):
        cache._drop()
    assert cache.size == 0


def is_first(part: object) -> bool:
    return isinstance(part, known_beginnings.Beginning) and part.parent is None


async def test_a_beginning_goes_on_from_the_very_one_that_it_went_on_from(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from one that has the same messages and was written on another day; the day comes again,
    as days of a week and hours do."""
    text, talk, day = texts["dated"], conversation(3), ["Monday"]
    assert text.template is not None and text.template.growing is not None
    growing = text.template.growing
    for each in (text.template._template, growing._template, growing._rest):
        if each is not None:
            monkeypatch.setitem(each.globals, "strftime_now", lambda form: day[0])
    for count, day[0] in ((3, "Monday"), (5, "Monday"), (3, "Friday the 13th"), (7, "Monday")):
        await check(text, body_of(talk[:count]))


async def test_a_long_row_without_its_first_is_looked_through_once(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, talk, looks = texts["plain"], conversation(30, 100), 0
    cache = text.pieces
    while len(cache):
        cache._drop()
    for count in range(1, len(talk), 2):
        await check(text, body_of(talk[:count]))
    first = next(key for key, share in cache._shares.items() if is_first(share.pieces[key]))
    cache.forget(first)
    get = cache.get

    def noted(key: bytes) -> Any:
        nonlocal looks
        looks += 1
        return get(key)

    monkeypatch.setattr(cache, "get", noted)
    await check(text, body_of(talk))
    assert looks < 6 * len(talk)


async def test_what_was_left_in_another_way_may_be_dropped_meanwhile(
    texts: dict[str, ModelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, body, day = texts["dated"], body_of(conversation(1)), ["Monday"]
    assert text.template is not None and text.template.growing is not None
    growing = text.template.growing
    for each in (text.template._template, growing._template, growing._rest):
        if each is not None:
            monkeypatch.setitem(each.globals, "strftime_now", lambda form: day[0])
    await check(text, body)
    day[0] = "Tuesday"
    with pytest.MonkeyPatch.context() as patched:
        drop_meanwhile(patched, text)
        await check(text, body)
    await check(text, body)


async def test_what_is_no_message_is_for_others_to_say(texts: dict[str, ModelText]) -> None:
    text = texts["plain"]
    plain = {"role": "user", "content": "a the of " * 40}
    await check(text, body_of([plain]))
    bad_call = {"function": {"name": "f", "arguments": "{"}}
    for other in (
        {"content": "a"},
        {"role": 1, "content": "a"},
        {"role": "user", "content": 1},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "assistant", "content": "", "tool_calls": [bad_call]},
    ):
        for talk in ([plain, other], [other, plain], [other]):
            assert await known(text, body_of(talk)) is None
    for broken in (b'"a\\x"', b'"\\ud83d"x', b'"\xff"', b'"a\tb"', b"1"):
        raw = b'{"model": "m", "messages": [{"role": "user", "content": "a"}, {"content": %b}]}'
        raw = raw.replace(b'{"content"', b'{"role": "user", "content"')
        assert await known(text, raw % broken) is None


async def test_what_is_too_long_is_for_others_to_say(texts: dict[str, ModelText]) -> None:
    text, body = texts["plain"], body_of(conversation(2))
    for _ in range(2):
        found = await known(text, body)
        assert found is not None
        most = a_reader(text, found.prompt.isl - 1)
        assert await known(text, body, reader=most) is None
        assert await known(text, body, reader=a_reader(text, 5)) is None
    short = RequestReader(BLOCK, CallerLimits(max_id_bytes=3), off_loop=text._off_loop)
    assert await known(text, body, Tenant("", 123), short) is not None
    assert await known(text, body, Tenant("", 1234), short) is None


def test_only_long_bodies_are_taken_apart() -> None:
    short, long = body_of(conversation(0, 10)), body_of(conversation(1, 6000))
    assert len(short) <= LONG_BODY < len(long)
    assert items_apart(short, CHAT_ITEMS) is None
    found = items_apart(long, CHAT_ITEMS)
    assert found is not None and json.loads(found.rest) == {"model": "m", "messages": []}
    assert items_apart(body_of(conversation(1, 6000), user="x" * MOST_REST), CHAT_ITEMS) is None
    assert (
        items_apart(body_of(conversation(1, 6000), user="x" * (MOST_REST - 100)), CHAT_ITEMS)
        is not None
    )
    many = [{"role": "user", "content": "a" * 40}] * (MOST_ITEMS + 1)
    assert items_apart(body_of(many), CHAT_ITEMS) is None
    assert items_apart(body_of(many[1:]), CHAT_ITEMS) is not None
    assert items_apart(body_of([{"role": "user", "content": ""}] * 25_000), CHAT_ITEMS) is None
    assert items_apart(body_of(conversation(1, 400_000)), CHAT_ITEMS) is None


async def test_a_template_that_refuses_a_turn_has_no_prompt(tmp_path: Path) -> None:
    folder, off_loop = tmp_path / "model", OffLoop()
    shutil.copytree(OWN_MODEL, folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if loop.index > 3 %}{{ raise_exception('no') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    try:
        text, talk = ModelText(folder, off_loop, PieceCache(1 << 20)), conversation(2)
        await check(text, body_of(talk[:3]))
        assert await known(text, body_of(talk)) is None  # and it is for others to say
    finally:
        off_loop.close()
