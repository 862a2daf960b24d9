"""The native reader of GenerateRequests against protobuf's own."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.generate import expected
from support.fake_engine import prompt

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.server.dispatch._generate_request import parse_generate, without_tokens
from dynamo_router.server.dispatch.generate_request import read_generate
from dynamo_router.workers.trtllm_proto import pb

u32 = st.integers(0, 2**32 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def requests(draw: st.DrawFn) -> Any:
    request = pb.GenerateRequest(
        request_id=draw(st.text(max_size=20)),
        max_tokens=draw(u32),
        streaming=draw(st.booleans()),
        stop_token_ids=draw(st.lists(u32, max_size=3)),
        stop=draw(st.lists(st.text(max_size=5), max_size=2)),
    )
    if draw(st.booleans()):
        request.tokenized.original_text = draw(st.text(max_size=10))
        request.tokenized.input_token_ids.extend(draw(st.lists(u32, max_size=40)))
        request.tokenized.query_token_ids.extend(draw(st.lists(u32, max_size=3)))
    if draw(st.booleans()):
        request.sampling_config.num_return_sequences = draw(st.integers(0, 9))
        request.sampling_config.temperature = draw(st.floats(0, 2, width=32))
    if draw(st.booleans()):
        request.lora_config.task_id = draw(i64)
        request.lora_config.config_json = draw(st.text(max_size=5))
    if draw(st.booleans()):
        request.cache_salt_id = draw(i64)
    if draw(st.booleans()):
        request.arrival_time = draw(st.floats(allow_nan=False))
    if draw(st.booleans()):
        request.multimodal_input.image_data.extend(draw(st.lists(st.binary(max_size=9))))
    if draw(st.booleans()):
        request.kv_cache_retention.config_json = draw(st.text(max_size=5))
    if draw(st.booleans()):
        request.disaggregated_params.request_type = draw(st.integers(0, 2))
    if draw(st.booleans()):
        request.prompt_tuning_config.embedding_table = draw(st.binary(max_size=9))
    return request


def parsed(body: bytes) -> tuple[Any, ...]:
    request_id, tokens, *rest = parse_generate(body)
    return (request_id, tokens.tolist(), *rest)


@settings(max_examples=100)
@given(requests())
def test_they_read_the_same(request_: Any) -> None:
    assert parsed(request_.SerializeToString()) == expected(request_)


@settings(max_examples=50)
@given(st.lists(requests(), min_size=2, max_size=3))
def test_messages_on_end_merge_alike(parts: list[Any]) -> None:
    body = b"".join(part.SerializeToString() for part in parts)
    assert parsed(body) == expected(pb.GenerateRequest.FromString(body))


@settings(max_examples=150)
@given(requests(), st.data())
def test_what_protobuf_understands_of_damaged_bytes_we_read_alike(
    request_: Any, data: st.DataObject
) -> None:
    body = bytearray(request_.SerializeToString())
    for _ in range(data.draw(st.integers(0, 2))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))]
    try:
        ours = parsed(bytes(body))
    except ValueError:
        return  # stricter is safe; never wrong is what counts
    try:
        theirs = expected(pb.GenerateRequest.FromString(bytes(body)))
    except DecodeError:
        with pytest.raises(InvalidRequestError):  # or engines that cannot read it would be blamed
            read_generate(bytes(body), 16)
        return
    assert ours == theirs


@pytest.mark.parametrize(
    "field",
    [
        b"\xaa\x01\x02\xc3\x28",  # a stop string that is not UTF-8
        b"\x12\x04\x0a\x02\xc3\x28",  # the prompt's text is not
        b"\x22\x02\x0a\x05",  # the output config is cut off
    ],
)
def test_what_engines_could_not_read_is_refused(field: bytes) -> None:
    body = prompt("r", 3).SerializeToString() + field
    with pytest.raises(DecodeError):
        pb.GenerateRequest.FromString(body)
    with pytest.raises(InvalidRequestError, match="no trtllm.GenerateRequest"):
        read_generate(body, 16)


@settings(max_examples=50)
@given(st.lists(requests(), min_size=1, max_size=3))
def test_the_rest_is_all_but_the_tokens(parts: list[Any]) -> None:
    body = b"".join(part.SerializeToString() for part in parts)
    whole = pb.GenerateRequest.FromString(body)
    del whole.tokenized.input_token_ids[:]
    whole.tokenized.SetInParent()
    rest = pb.GenerateRequest.FromString(without_tokens(body))
    rest.tokenized.SetInParent()
    assert rest == whole
    assert len(without_tokens(body)) <= len(body)


@settings(max_examples=150)
@given(st.binary(max_size=60))
def test_junk_never_does_harm(body: bytes) -> None:
    try:
        parsed(body)
    except ValueError:
        pass


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",  # a tag without a length
        b"\x0a\x05abcd",  # shorter than it says
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # longer than memory
        b"\x28" + b"\x80" * 11,  # a number without an end
        b"\x00\x01",  # field 0
        b"\x12\x04\x12\x02\x01\x80",  # the last token is cut off
        b"\x12\x0d\x12\x0b" + b"\x80" * 10 + b"\x01",  # a token longer than any number
        b"\x0a\x02\xff\xfe",  # an id that is not UTF-8
    ],
)
def test_damage_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        parse_generate(body)


def test_tokens_may_come_unpacked_and_in_pieces() -> None:
    packed = prompt("r", 3).SerializeToString()
    unpacked = b"\x12\x07\x10\x07\x18\x01\x10\xac\x02"  # 7, a query token, 300
    assert parsed(packed + unpacked)[1] == [1, 2, 3, 7, 300]


def test_a_long_prompt() -> None:
    request = prompt("r", 0)
    request.tokenized.input_token_ids.extend(range(300_000))
    assert parsed(request.SerializeToString())[1] == list(range(300_000))
