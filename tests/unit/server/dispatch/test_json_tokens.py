"""Token ids cut out of JSON: as the json module reads them, or refused."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_router.server.dispatch._json_tokens import (
    count_parts,
    cut_items,
    cut_tokens,
    outline_of,
)

KEY = b"token_ids"
MANY = 2**20
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(['"token_ids":[1]', "]", "}"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
others = st.dictionaries(
    st.text(max_size=6).filter(lambda key: key != "token_ids"), plain, max_size=4
)


def cut(text: str | bytes, most: int = MANY, rest: int = MANY) -> tuple[Any, bytes]:
    body = text.encode() if isinstance(text, str) else text
    tokens, left = cut_tokens(body, KEY, most, rest)
    return (None if tokens is None else tokens.tolist()), left


@settings(max_examples=300)
@given(
    others,
    st.lists(st.integers(0, 2**32 - 1), max_size=20),
    st.integers(0, 4),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
def test_the_tokens_are_those_of_json_and_the_rest_is_left(
    rest: dict[str, Any], tokens: list[int], place: int, indent: Any, ascii: bool
) -> None:
    pairs = list(rest.items())
    pairs.insert(place, ("token_ids", tokens))
    body = json.dumps(dict(pairs), indent=indent, ensure_ascii=ascii)
    found, left = cut(body.encode("utf-8", "surrogatepass"))
    assert found == tokens
    assert json.loads(left.decode("utf-8", "surrogatepass")) == {**rest, "token_ids": []}


@settings(max_examples=200)
@given(others)
def test_without_them_nothing_is_cut(rest: dict[str, Any]) -> None:
    body = json.dumps(rest)
    assert cut(body) == (None, body.encode())


@settings(max_examples=300)
@given(st.text(alphabet='{}[]",:\\ 0123-e.token_ids', max_size=40))
def test_any_bytes_are_read_or_refused(text: str) -> None:
    for body in (text, '{"token_ids":' + text, '{"token_ids":[' + text):
        try:
            found, left = cut(body)
        except ValueError:
            continue
        if found is not None:
            assert len(left) <= len(body) and b"[]" in left


@pytest.mark.parametrize(
    "value",
    ["[-1]", "[1.0]", "[1e3]", "[4294967296]", "[\"1\"]", "[01]", "[1,]", "[,1]", "[1", "1"],
)  # fmt: skip
def test_what_is_no_list_of_tokens_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="no list of token ids"):
        cut(f'{{"a": 1, "token_ids": {value}}}')


def test_twice_is_refused_and_inside_something_else_is_another_matter() -> None:
    with pytest.raises(ValueError, match="twice"):
        cut('{"token_ids": [1], "token_ids": [2]}')
    assert cut('{"x": {"token_ids": [1]}, "token_ids": [2]}')[0] == [2]
    assert cut('[{"token_ids": [1]}]')[0] is None and cut("")[0] is None


def test_limits_are_named() -> None:
    body = '{"token_ids": [1, 2, 3], "a": 1}'
    assert cut(body, 3, 23) == ([1, 2, 3], b'{"token_ids": [], "a": 1}')
    with pytest.raises(OverflowError, match="max_prompt_tokens"):
        cut(body, 2)
    with pytest.raises(OverflowError, match="decoded_bytes"):
        cut(body, 3, 22)
    with pytest.raises(OverflowError, match="decoded_bytes"):
        cut('{"token\\u005fids": [1, 2, 3]}', 3, 20)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        'a, [b] {c} \\ "d",',
        {"a": [1, 2, {"b": "x,y"}], "c": None},
        [[[[]]]],
        {str(n): n for n in range(50)},
        ['"', "\\", '\\"', ",", "["],
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_parts_of_a_json_text_are_counted(value: Any, indent: int | None) -> None:
    parts = commas = 0

    def walk(each: Any) -> None:
        nonlocal parts, commas
        parts += isinstance(each, str | list | dict)
        if isinstance(each, list | dict):
            commas += max(0, len(each) - 1)
            parts += len(each) if isinstance(each, dict) else 0  # its keys
            for inner in each.values() if isinstance(each, dict) else each:
                walk(inner)

    walk(value)
    assert count_parts(json.dumps(value, indent=indent).encode()) == (parts, commas)


@pytest.mark.parametrize("text", [b"", b'"', b'"\\', b"]]}}", b"[" * 99, b'{"a', b"\xff,\x00"])
def test_counting_ends_on_any_bytes(text: bytes) -> None:
    parts, commas = count_parts(text)
    assert parts + commas <= len(text)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(['"', "\\", "\\\\", "a", ","]), max_size=30).map("".join))
def test_strings_end_at_the_first_quote_that_nothing_escapes(text: str) -> None:
    strings = commas = at = 0
    while at < len(text):
        if text[at] == '"':
            strings += 1
            at += 1
            while at < len(text) and text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        else:
            commas += text[at] == ","
        at += 1
    assert count_parts(text.encode()) == (strings, commas)


@pytest.mark.parametrize(
    "value",
    [
        {"model": "tiny", "prompt": "x" * 50},
        {"prompt": ["x" * 11, "y" * 10, "z" * 12], "model": "m" * 11},
        ["a", "b" * 99, {"c" * 40: "d" * 40}, 'e"\\' * 9, "é" * 20],
        "f" * 11,
        {},
    ],
)
def test_an_outline_is_the_same_without_its_long_strings(value: Any) -> None:
    def shorter(each: Any) -> Any:
        if isinstance(each, dict):
            return {shorter(name): shorter(inner) for name, inner in each.items()}
        if isinstance(each, list):
            return [shorter(inner) for inner in each]
        written = json.dumps(each, ensure_ascii=False).encode()
        return "" if len(written) - 2 > 10 else each

    body = json.dumps(value, ensure_ascii=False).encode()
    assert json.loads(outline_of(body, 10)) == shorter(value)


@pytest.mark.parametrize(
    "text", [b"", b'"', b'"\\', b"[" * 99, b'{"a' + b"x" * 99, b'"' + b"y" * 99]
)
def test_an_outline_of_any_bytes_ends(text: bytes) -> None:
    assert len(outline_of(text, 10)) <= len(text)


messages = st.lists(st.dictionaries(st.text(max_size=6), plain, max_size=3), min_size=1, max_size=6)
no_messages = st.dictionaries(st.text(max_size=9).filter(lambda key: key != "messages"), plain)


@settings(max_examples=300)
@given(no_messages, messages, st.integers(0, 4), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_messages_are_found_where_they_are_and_the_rest_is_left(
    rest: dict[str, Any], listed: list[Any], place: int, indent: Any, ascii: bool
) -> None:
    pairs = list(rest.items())
    pairs.insert(place, ("messages", listed))
    text = json.dumps(dict(pairs), indent=indent, ensure_ascii=ascii)
    body = text.encode("utf-8", "surrogatepass")
    found = cut_items(body, b"messages", 6, MANY, False)
    if any("\\" in json.dumps(key, ensure_ascii=ascii) for key in rest):
        assert found is None
        return
    assert found is not None
    left, same, begin, ends = found
    assert same is body
    assert json.loads(left.decode("utf-8", "surrogatepass")) == {**rest, "messages": []}
    starts = [begin, *(end for end in ends[:-1])]
    parts = [body[a:b].lstrip(b", \t\n") for a, b in zip(starts, ends, strict=True)]
    assert [json.loads(part.decode("utf-8", "surrogatepass")) for part in parts] == listed
    assert cut_items(body, b"messages", len(listed) - 1, MANY, False) is None
    assert cut_items(body, b"messages", 6, 1, False) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"messages": {}}',
        b'{"messages": []}',
        b'{"messages": [1]}',
        b'{"messages": [{}, 1]}',
        b'{"messages": [{},]}',
        b'{"messages": [{}',
        b'{"messages": [{"a": "b}]}',
        b'{"messages": [{}]',
        b'{"messages": [{}], "messages": [{}]}',
        b'{"messages": [{}], "message\\u0073": [{}]}',
        b'{"messages": [{}] 1}',
        b'{"messages" [{}]}',
    ],
)
def test_other_bodies_have_no_messages_to_find(body: bytes) -> None:
    assert cut_items(body, b"messages", 9, MANY, False) is None


@settings(max_examples=500)
@given(messages, st.data())
def test_a_damaged_body_is_damaged_in_the_rest_or_in_a_message(
    listed: list[Any], data: st.DataObject
) -> None:
    """What is taken apart is JSON if its parts are: nothing is lost between them."""
    body = json.dumps({"model": "m", "messages": listed, "n": 1}).encode()
    at = data.draw(st.integers(0, len(body) - 1))
    damaged = (
        body[:at]
        + data.draw(st.sampled_from([b"", b",", b"{", b"]", b'"', b"1"]))
        + (body[at + data.draw(st.integers(0, 1)) :])
    )
    found = cut_items(damaged, b"messages", 99, MANY, False)
    if found is None:
        return
    left, same, begin, ends = found
    assert same is damaged
    try:
        rest, parts = json.loads(left), json.loads(b"[" + damaged[begin : ends[-1]] + b"]")
    except ValueError:
        with pytest.raises(ValueError):
            json.loads(damaged)
        return
    assert json.loads(damaged) == {**rest, "messages": parts}


@pytest.mark.parametrize(
    "between", [b"1", b"x", b"[", b"[]", b"\xff", b"/**/", b",", b'"a"', b"{}"]
)
def test_what_is_no_json_before_a_mark_is_not_left_out_with_it(between: bytes) -> None:
    block = b'{"type":"text","text":"a", %b "cache_control":{"type":"ephemeral"}}'
    body = b'{"messages":[{"role":"user","content":[' + block + b"]}]}"
    assert cut_items(body % b"", b"messages", 9, MANY, True) is not None
    found = cut_items(body % between, b"messages", 9, MANY, True)
    assert found is None or between in found[1]


def _without_marks(value: Any) -> Any:
    """As a decoder reads it, where marks count for nothing."""
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name != "cache_control"}
        return {name: _without_marks(each) for name, each in kept.items()}
    return list(map(_without_marks, value)) if isinstance(value, list) else value


MARKED = [
    {"type": kind, "text": "a, ]", "cache_control": {"type": "ephemeral", **ttl}, "n": [1, {}]}
    for kind in ("text", "tool_use", "thinking")
    for ttl in ({}, {"ttl": "5m"})
]


@settings(max_examples=1500)
@given(st.lists(st.sampled_from(MARKED), min_size=1, max_size=2), st.data())
def test_a_damaged_body_with_marks_is_damaged_without_them(
    blocks: list[Any], data: st.DataObject
) -> None:
    listed = [{"role": "user", "content": blocks}, {"role": "user", "content": "a"}]
    damaged = json.dumps({"model": "m", "messages": listed, "n": 1}).encode()
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        put = data.draw(st.sampled_from([b"", b",", b"{", b"}", b"]", b'"', b"1", b"\\", b":"]))
        damaged = damaged[:at] + put + damaged[at + data.draw(st.integers(0, 1)) :]
    found = cut_items(damaged, b"messages", 99, MANY, True)
    if found is None:
        return
    left, same, begin, ends = found
    try:
        rest, parts = json.loads(left), json.loads(b"[" + same[begin : ends[-1]] + b"]")
    except ValueError:
        with pytest.raises(ValueError):
            json.loads(damaged)
        return
    whole = json.loads(damaged)
    assert _without_marks(whole) == _without_marks({**rest, "messages": parts})
