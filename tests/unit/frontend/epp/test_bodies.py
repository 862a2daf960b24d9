"""What a picker reads of requests, of answers that pass, and of headers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.frontend.epp.answers import LONGEST_EVENT, PassingAnswer
from dynamo_router.frontend.epp.control_headers import read_control
from dynamo_router.frontend.epp.requests import read_chat, read_completion, with_model
from dynamo_router.frontend.openai import ApiError
from dynamo_router.server.dispatch import usage_of

SSE = {"content-type": "text/event-stream; charset=utf-8"}
WHOLE = {"content-type": "application/json"}
TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.lists(st.tuples(TEXT.filter(lambda key: key != "model"), VALUES), max_size=3)


@given(FIELDS, FIELDS, VALUES, TEXT, st.sampled_from((None, 1)), st.booleans())
def test_a_models_name_is_spliced_and_all_else_stays(
    before: list[tuple[str, object]],
    after: list[tuple[str, object]],
    old: object,
    name: str,
    indent: int | None,
    escaped: bool,
) -> None:
    def dumped(value: object) -> bytes:
        return json.dumps(value, indent=indent, ensure_ascii=escaped).encode()

    def pairs(part: list[tuple[str, object]]) -> list[bytes]:
        return [dumped(key) + b" : " + dumped(value) for key, value in part]

    head = b"{" + b"".join(field + b"," for field in pairs(before)) + b'"model"\t:'
    tail = b"".join(b"\n, " + field for field in pairs(after)) + b" }"
    found = with_model(head + dumped(old) + tail, name)
    assert found.startswith(head) and found.endswith(tail)
    assert json.loads(found[len(head) : len(found) - len(tail)]) == name


def test_numbers_keys_and_spaces_stay_as_they_are() -> None:
    body = b'{ "a":1.00e0 ,"model" : "x", "model":\t"y" , "b":{"model":"z"}, "a":2}'
    assert with_model(body, "q") == body.replace(b'"y"', b'"q"')


@pytest.mark.parametrize(
    "body, text",
    [
        (b"no", "the body is not what it must be"),
        (b'{"model":"a","messages":[{"role":"user"', "the body is not what it must be"),
        (b"[]", "the body is not what it must be: Expected `object`, got `array`"),
        (b'{"messages":[{"role":"user"}]}', "missing required field `model`"),
        (b'{"model":1,"messages":[]}', "model: Expected `str`, got `int`"),
        (b'{"model":"a","messages":[]}', "messages is empty"),
        (b'{"model":"a","messages":[{}]}', "messages[0].role is missing"),
        (
            b'{"model":"a","messages":[{"role":"user","content":[{"type":"image_url"}]}]}',
            "messages[0].content has a part that is no text: 'image_url' is not supported",
        ),
        (b'{"model":"a","x":' + b"[" * 100_000, "the body is nested too deep"),
        (b"\xff", "the body is not what it must be"),
    ],
)
def test_what_is_no_chat_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_chat(body)
    assert refused.value.status == 400 and text in str(refused.value)


def test_what_only_the_engine_knows_is_the_engines_to_judge() -> None:
    body = b'{"model":"a","prompt":"x","temperature":"hot","logit_bias":7,"n":2,"max_tokens":-3}'
    read = read_completion(body)
    assert (read.n, read.output_limit, bytes(read.prompt)) == (2, 0, b'"x"')


def event(tokens: int | None = None, cached: int | None = None, choices: int = 1) -> bytes:
    data: dict[str, object] = {"choices": [{}] * choices, "usage": None}
    if tokens is not None:
        details = None if cached is None else {"cached_tokens": cached}
        data["usage"] = {"completion_tokens": tokens, "prompt_tokens_details": details}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@given(st.lists(st.integers(0, 400), max_size=6))
def test_a_streams_tokens_are_counted_however_it_is_cut(places: list[int]) -> None:
    stream = event() * 3 + b": keep-alive\n\n" + event(5, 4, choices=0) + b"data: [DONE]\n\n"
    answer = PassingAnswer(SSE, 10)
    cuts = sorted({min(place, len(stream)) for place in places} | {0, len(stream)})
    for begin, end in zip(cuts, cuts[1:], strict=False):
        answer.feed(stream[begin:end])
    assert usage_of(answer.complete()) == (5, 4)


def test_the_first_tokens_of_a_stream_are_a_message() -> None:
    answer = PassingAnswer(SSE, 10)
    assert answer.feed(b": nothing yet\n\n") is None
    assert answer.feed(event()) is not None
    assert answer.tokens == 1


def test_a_whole_answer_says_its_usage_at_the_end() -> None:
    body = event(7, 99).removeprefix(b"data: ")
    answer = PassingAnswer(WHOLE, 10)
    assert [answer.feed(body[:9]), answer.feed(body[9:])] == [None, None]
    assert usage_of(answer.complete()) == (7, 10)  # no more is cached than there is


@pytest.mark.parametrize(
    "headers, data",
    [
        (WHOLE, b"{"),
        (WHOLE, b'{"usage":{"completion_tokens":"many"}}'),
        (WHOLE, b" " * (LONGEST_EVENT + 1)),
        (WHOLE | {"content-encoding": "gzip"}, b'{"usage":{"completion_tokens":3}}'),
        ({}, b'{"usage":{"completion_tokens":3}}'),
        (SSE, b"data: {\n"),
    ],
)
def test_what_cannot_be_read_says_nothing(headers: dict[str, str], data: bytes) -> None:
    answer = PassingAnswer(headers, 10)
    assert answer.feed(data) is None
    assert usage_of(answer.complete()) == (0, 0)


def test_a_stream_that_cannot_be_read_counts_its_parts() -> None:
    packed = PassingAnswer(SSE | {"content-encoding": "br"}, 10)
    assert packed.feed(b"\x00") and packed.feed(b"\x01")
    long = PassingAnswer(SSE, 10)
    assert long.feed(b"data: " + b"x" * (LONGEST_EVENT + 1))
    assert long.feed(b"more")
    assert (packed.tokens, long.tokens) == (2, 1)


def test_control_headers_stay_with_the_picker() -> None:
    headers = {
        "content-type": "application/json",
        "x-gateway-destination-endpoint": "10.6.6.6:80",
        "x-gateway-destination-endpoint-subset": "10.6.6.6:80",
        "x-prefiller-host-port": "10.6.6.6:80",
        "x-gateway-inference-fairness-id": "team",
        "x-slo-ttft-ms": "250",
        "x-llm-d-model-name-rewrite": "small",
    }
    asked = read_control(headers)
    assert asked.model == "small"
    assert set(asked.remove) == set(headers) - {"content-type", "x-gateway-destination-endpoint"}
    found = dict(asked.metadata)
    assert found["x-tenant-id"] == "team" and found["x-dynamo-slo-ttft-ms"] == "250"
    assert not {name for name in found if "10.6.6.6" in found[name]}
    assert read_control({"a": "b"}) == ((("a", "b"),), (), "")


@pytest.mark.parametrize("name", ["a\nb", "a" * 257])
def test_a_rewrite_to_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ApiError, match="is no name of a model"):
        read_control({"x-gateway-model-name-rewrite": name})
