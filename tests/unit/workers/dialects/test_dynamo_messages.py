"""TensorRT-LLM's requests in Dynamo's words, and its answers in ours, from recorded bytes."""

import base64
import json
from typing import Any

import msgspec
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from support.fake_engine import prompt
from support.places import ROOT

from dynamo_router.base.errors import InvalidRequestError, WorkerError
from dynamo_router.workers.dialects._token_ids import split_tokens
from dynamo_router.workers.dialects.dynamo_messages import AnswerWriter, read_request
from dynamo_router.workers.trtllm_proto import pb

RECORDED = ROOT / "tests" / "vectors" / "request_plane" / "tcp_generate.json"


def recorded_parts() -> list[Any]:
    """The parts of an answer of three tokens, as a worker of Dynamo's sent them."""
    case = json.loads(RECORDED.read_text())["cases"]["complete_3_tokens"]
    parts = []
    for frame in (frame for frame in case["response_connection"] if "b64" in frame):
        data = base64.b64decode(frame["b64"])
        header, body = (int.from_bytes(data[at : at + 8]) for at in (0, 8))
        if body:
            envelope = msgspec.msgpack.decode(data[24 + header : 24 + header + body])
            if "data" in envelope:
                parts.append(envelope["data"]["data"])
    return parts


def answered(request: Any, parts: list[Any]) -> list[Any]:
    writer = AnswerWriter(request, len(request.tokenized.input_token_ids))
    messages = [message for part in parts if (message := writer.on_part(part)) is not None]
    return [pb.GenerateResponse.FromString(message) for message in [*messages, writer.complete()]]


def test_a_recorded_answer_in_our_words() -> None:
    request = prompt("r1", 32)
    *chunks, last = answered(request, recorded_parts())
    assert [len(chunk.chunk.token_ids) for chunk in chunks] == [1, 1, 1]
    tokens = [token for chunk in chunks for token in chunk.chunk.token_ids]
    assert list(last.complete.output_token_ids) == tokens and tokens[:2] == [1403, 1639]
    assert last.complete.finish_reason == "length"
    assert (last.complete.prompt_tokens, last.complete.completion_tokens) == (32, 3)
    assert {answer.request_id for answer in (*chunks, last)} == {"r1"}


def test_who_does_not_stream_gets_it_whole() -> None:
    request = prompt("r1", 32)
    request.streaming = False
    (last,) = answered(request, recorded_parts())
    assert len(last.complete.output_token_ids) == 3


def decoded(tokens: Any) -> list[int]:
    """Tokens as they are sent."""
    found: list[int] = msgspec.msgpack.decode(msgspec.msgpack.encode(tokens))
    return found


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_what_is_asked_for_is_said_in_dynamos_words(codec: str) -> None:
    request = prompt("r1", 3, cache_salt_id=9)
    request.sampling_config.temperature = 0.5
    request.sampling_config.min_tokens = 2
    request.stop_token_ids.append(7)
    request.ignore_eos = True
    request.lora_config.task_id = 4
    body = read_request(request.SerializeToString(), 1, codec).body
    assert decoded(body["token_ids"]) == [1, 2, 3]
    assert body["stop_conditions"] == {
        "max_tokens": 4, "ignore_eos": True, "stop_token_ids": [7], "min_tokens": 2,
    }  # fmt: skip
    assert body["sampling_options"] == {"temperature": 0.5}
    assert body["routing"] == {"dp_rank": 1, "cache_salt": "9", "lora_name": "4"}


def beams(request: Any) -> None:
    request.sampling_config.beam_width = 2


def images(request: Any) -> None:
    request.multimodal_input.image_data.append(b"x")


def no_tokens(request: Any) -> None:
    request.max_tokens = 0


def bad_words(request: Any) -> None:
    request.bad_token_ids.append(5)


@pytest.mark.parametrize("change", [beams, images, no_tokens, bad_words])
def test_what_dynamo_has_no_word_for_is_refused(change: Any) -> None:
    request = prompt("r1", 3)
    change(request)
    with pytest.raises(InvalidRequestError):
        read_request(request.SerializeToString(), None)


@pytest.mark.parametrize(
    ("said", "told"), [("eos", "stop"), ("stop", "stop"), ("cancelled", "cancelled")]
)
def test_finish_reasons(said: str, told: str) -> None:
    (_, last) = answered(prompt(), [{"token_ids": [5]}, {"token_ids": [], "finish_reason": said}])
    assert last.complete.finish_reason == told


def test_cached_tokens_reach_the_client() -> None:
    usage = {"prompt_tokens_details": {"cached_tokens": 16}}
    part = {"token_ids": [5], "completion_usage": usage}
    first, last = answered(prompt(), [part, {"token_ids": [], "finish_reason": "length"}])
    assert first.chunk.cached_tokens == 16 and last.complete.cached_tokens == 16


@pytest.mark.parametrize(
    "part",
    [None, 7, {}, {"token_ids": None}, {"token_ids": [-1]}, {"token_ids": ["x"]},
     {"token_ids": [2**32]}, {"token_ids": [2**70]}, {"token_ids": [True]}, {"token_ids": {}},
     {"token_ids": [], "finish_reason": {"error": "out of memory"}},
     {"token_ids": [], "finish_reason": 5},
     {"token_ids": [1], "completion_usage": {"prompt_tokens_details": {"cached_tokens": -1}}},
     {"token_ids": [1], "completion_usage": 5}],
)  # fmt: skip
@pytest.mark.parametrize("streaming", [True, False])
def test_a_part_that_is_none_is_the_workers_fault(part: Any, streaming: bool) -> None:
    request = prompt()
    request.streaming = streaming
    with pytest.raises(WorkerError):
        AnswerWriter(request, 1).on_part(part)


def test_an_answer_without_an_end_is_none() -> None:
    writer = AnswerWriter(prompt(), 1)
    writer.on_part({"token_ids": [1]})
    with pytest.raises(WorkerError, match="without a reason"):
        writer.complete()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=70), st.booleans(), st.text())
def test_tokens_are_encoded_as_msgspec_does_and_the_rest_stays(
    tokens: list[int], packed: bool, text: str
) -> None:
    rest = pb.GenerateRequest(request_id=text, max_tokens=5, stop=[text])
    request = rest.SerializeToString()
    if packed:
        with_tokens = pb.GenerateRequest()
        with_tokens.tokenized.input_token_ids.extend(tokens)
        request += with_tokens.SerializeToString()
    else:  # one number to a field, and a submessage for each
        for token in tokens:
            inner = b"\x10" + varint(token)
            request += b"\x12" + varint(len(inner)) + inner
    found, encoded, count, present = split_tokens(request)
    assert pb.GenerateRequest.FromString(found) == rest
    fields = {field.number for field, _ in rest.ListFields()} | ({2} if tokens else set())
    assert present & ~4 == sum(1 << number for number in fields - {2})
    assert (present & 4 != 0) >= (2 in fields)
    assert encoded == msgspec.msgpack.encode(tokens) and count == len(tokens)


def varint(number: int) -> bytes:
    data = b""
    while number > 0x7F:
        data += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return data + bytes((number,))


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_arrays_of_all_sizes(count: int) -> None:
    request = pb.GenerateRequest()
    request.tokenized.input_token_ids.extend([7] * count)
    _, encoded, _, _ = split_tokens(request.SerializeToString())
    assert encoded == msgspec.msgpack.encode([7] * count)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_request_are_refused_or_read_as_protobuf_does(data: bytes) -> None:
    try:
        rest, tokens, count, present = split_tokens(data)
    except ValueError:
        return
    assert len(msgspec.msgpack.decode(tokens)) == count
    try:
        whole = pb.GenerateRequest.FromString(data)
    except DecodeError:
        return
    assert list(whole.tokenized.input_token_ids) == msgspec.msgpack.decode(tokens)
    assert all(present >> field.number & 1 for field, _ in whole.ListFields())
    whole.ClearField("tokenized")
    assert pb.GenerateRequest.FromString(rest) == whole
