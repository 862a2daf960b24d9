"""Marks of blocks (`cache_control`) are left out of what is compared with known items only where a
request without them is as good as with them, and is the same."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.frontend.anthropic import read_messages
from dynamo_router.frontend.openai import ApiError
from dynamo_router.server.dispatch import cut_items

MOST, STEPS = 64, 1 << 20
MARK = '"cache_control":{"type":"ephemeral"}'
TEXT = '{"type":"text","text":"a"%s}'
HEAD = b'{"model":"m","max_tokens":5,"messages":['


def unmarked(items: str) -> tuple[bytes, bytes]:
    """A body with these messages, and the same without marks, put together of its parts."""
    body = HEAD + items.encode("utf-8", "surrogatepass") + b"]}"
    found = cut_items(body, b"messages", MOST, STEPS, True)
    if found is None:
        return body, body
    rest, whole, begin, ends = found
    at = rest.index(b'"messages":[') + 12
    assert whole[:begin].rstrip() == rest[:at] and whole[ends[-1] :].lstrip() == rest[at:]
    return body, whole


def outcome(body: bytes) -> Any:
    """What a request asks for; None: it is refused."""
    try:
        return read_messages(body).chat
    except ApiError:
        return None


@pytest.mark.parametrize(
    ("marked", "left"),
    [
        (f',{MARK}', ""),
        (',"cache_control":{"type":"ephemeral","ttl":"5m"}', ""),
        (', "cache_control" : { "type" : "ephemeral" , "ttl" : "1h" }', ""),
        (f",{MARK},{MARK}", ""),
        (f',{MARK},"citations":null', ',"citations":null'),
        (f',"citations":null,{MARK}', ',"citations":null'),
        (f",{MARK} ", " "),
        *(
            (kept, kept)
            for kept in (
                "",
                ',"cache_control":null',
                ',"cache_control":{"type":"x"}',
                ',"cache_control":{"type":"ephemeral","ttl":"2m"}',
                ',"cache_control":{"type":"ephemeral","more":1}',
                f',"cache_control":{{"type":"x"}},{MARK}',
                f',{MARK},"cache_control":1',
                f',{MARK},"cache\\u005fcontrol":1',
                f',{MARK},"type":"thinking"',
                f',{MARK},"ty\\u0070e":"thinking"',
                f',{MARK} "x":1',
                f',{MARK}x',
                f',"a":{{"b":1,{MARK}}}',
                f',"a":"\\",{MARK}"',
            )
        ),
    ],
)  # fmt: skip
def test_a_block_is_without_its_marks_where_all_of_them_are_right(marked: str, left: str) -> None:
    item = '{"role":"user","content":[%s]}'
    body, found = unmarked(item % (TEXT % marked))
    assert found == HEAD + (item % (TEXT % left)).encode() + b"]}"
    assert outcome(found) == outcome(body)


@pytest.mark.parametrize(
    "item",
    [
        f'{{"role":"assistant","content":[{{"type":"thinking","thinking":"a",{MARK}}}]}}',
        f'{{"role":"user","content":{{"type":"text","text":"a",{MARK}}}}}',
        f'{{"role":"user","content":"a",{MARK}}}',
        f'{{"role":"user","content":[[{{"type":"text","text":"a",{MARK}}}]]}}',
        '{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f",'
        f'"input":{{"type":"text",{MARK},"a":[{{"type":"text",{MARK}}}]}}}}]}}',
        f'{{"role":"user","content":[{{{MARK},"type":"text","text":"a"}}]}}',
    ],
)
def test_what_is_no_mark_of_a_block_stays(item: str) -> None:
    body, found = unmarked(item)
    assert found is body


FRAGMENTS = st.sampled_from(
    [",", " ", "{", "}", '"', "1", f",{MARK}", MARK, '"type":"text"', ',"type":"thinking"', "\\"]
)
FIELD = st.sampled_from(
    [
        '"type":"text"', '"type":"tool_use"', '"type":"thinking"', '"type": "text"', '"text":"a"',
        MARK, MARK, '"cache_control":{"type":"ephemeral","ttl":"1h"}', '"cache_control":null',
        '"cache_control":{"ttl":"1h","type":"ephemeral"}', '"cache_control":2', '"citations":[]',
        '"id":"i"', '"name":"f"', '"input":{}', '"thinking":"t"', '"input":{"cache_control":1}',
    ]
)  # fmt: skip
USUAL = st.sampled_from(
    [
        [],
        ['"type":"text"', '"text":"a"'],
        ['"type":"tool_use"', '"id":"i"', '"name":"f"', '"input":{}'],
        ['"type":"thinking"', '"thinking":"t"'],
    ]
)
BLOCK = st.tuples(USUAL, st.lists(FIELD, max_size=3), st.randoms(use_true_random=False)).map(
    lambda each: "{" + ",".join(each[2].sample(each[0] + each[1], len(each[0] + each[1]))) + "}"
)
MESSAGE = st.tuples(st.sampled_from(["user", "assistant"]), st.lists(BLOCK, max_size=3)).map(
    lambda each: f'{{"role":"{each[0]}","content":[{",".join(each[1])}]}}'
)


@settings(max_examples=600, deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=3), st.integers(0, 400), st.none() | FRAGMENTS)
def test_a_request_without_marks_asks_for_the_same(
    messages: list[str], place: int, damage: str | None
) -> None:
    """Or is refused as well, whatever is wrong with it."""
    items = ",".join([*messages, '{"role":"user","content":"b"}'])
    if damage is not None:
        place %= len(items)
        items = items[:place] + damage + items[place:]
    body, found = unmarked(items)
    assert outcome(found) == outcome(body)
