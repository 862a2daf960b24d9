"""What an answer's frames mean: recorded ones, and what a worker must not send."""

import json
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import VECTORS

from dynamo_router.runtime.request_planes.faults import Fault
from dynamo_router.runtime.request_planes.frames import (
    FrameError,
    RequestDecoder,
    TwoPart,
    TwoPartDecoder,
    encode_two_part,
)
from dynamo_router.runtime.request_planes.messages import (
    SENTINEL,
    data_frame,
    decode_request_message,
    final_frame,
    prologue,
)
from dynamo_router.runtime.request_planes.response_reader import (
    Data,
    Ended,
    Event,
    ResponseReader,
    part_decoders,
    subject_of,
)

RECORDED = VECTORS / "request_plane"


def recorded(file: str, case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{file}.json").read_text())["cases"][case]
    return found


def frames_of(data: bytes) -> list[TwoPart]:
    return TwoPartDecoder().feed(data)


def read(case: dict[str, Any]) -> list[Event]:
    codec = case["request"]["control"].get("payload_codec", "json")
    reader, events = ResponseReader(codec), []
    sent = [f for f in case["response_connection"] if f["dir"].startswith("worker") and "b64" in f]
    first, *others = [frame for f in sent for frame in frames_of(b64decode(f["b64"]))]
    info = json.loads(case["request"]["control"]["connection_info"]["info"])
    assert subject_of(first) == info["subject"]
    for frame in others:
        events += reader.on_frame(frame)
    return events + reader.on_eof()


@pytest.mark.parametrize("case", ["complete_3_tokens", "json_codec"])
def test_a_recorded_answer_is_complete(case: str) -> None:
    *parts, end = read(recorded("tcp_generate", case))
    assert end == Ended()
    tokens = [part.value["data"]["token_ids"] for part in parts if isinstance(part, Data)]
    assert len(tokens) == len(parts) >= 2 and all(isinstance(ids, list) for ids in tokens)
    assert sum(map(len, tokens)) >= 2


@pytest.mark.parametrize("case", ["stop", "kill"])
def test_a_recorded_answer_that_was_cancelled_just_ends(case: str) -> None:
    *parts, end = read(recorded("tcp_cancel", case))
    assert isinstance(end, Ended) and end.fault is Fault.BROKEN
    assert parts


def test_a_recorded_error_is_a_part_like_any_other() -> None:
    part, end = read(recorded("tcp_errors", "error_chunk_no_max_tokens"))
    assert isinstance(part, Data) and part.value["error"]["error_type"] == "InvalidArgument"
    assert end == Ended()


def test_a_recorded_recovery_has_no_inner_envelope() -> None:
    part, end = read(recorded("worker_kv_query", "recovery_from_1"))
    assert isinstance(part, Data) and list(part.value) == ["Events"]
    assert end == Ended()


def after_prologue(*data: bytes) -> list[Event]:
    reader, events = ResponseReader("json"), []
    for frame in frames_of(prologue() + b"".join(data)):
        events += reader.on_frame(frame)
    return events + reader.on_eof()


def test_an_error_in_the_prologue_is_a_refusal() -> None:
    reader = ResponseReader("json")
    (frame,) = frames_of(prologue("no room"))
    assert reader.on_frame(frame) == [Ended(Fault.REFUSED, "no room")]
    assert reader.on_eof() == []


def test_the_end_may_ride_in_the_last_part() -> None:
    body = msgspec.json.encode({"data": 1, "complete_final": True})
    reader = ResponseReader("json")
    reader.on_frame(frames_of(prologue())[0])
    assert reader.on_frame(TwoPart(b"", body)) == [Data(1), Ended()]


def test_without_an_end_the_sentinel_means_broken() -> None:
    events = after_prologue(data_frame(1, "json"), SENTINEL)
    assert events == [Data(1), Ended(Fault.BROKEN, "the worker gave up its answer")]


class Typed(msgspec.Struct, forbid_unknown_fields=True):
    number: int


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_parts_are_of_a_type_where_they_fit_it(codec: str) -> None:
    reader = ResponseReader(codec, part_decoders(Typed))
    frames = [
        prologue(),
        *(data_frame(part, codec) for part in [{"number": 1}, {"number": "1"}, 5]),
    ]
    events = [event for each in frames for event in reader.on_frame(frames_of(each)[0])]
    assert events == [Data(Typed(1)), Data({"number": "1"}), Data(5)]


def test_null_is_a_part_too() -> None:
    assert after_prologue(data_frame(None, "json"), final_frame("json")) == [Data(None), Ended()]


@pytest.mark.parametrize(
    "frame",
    [
        TwoPart(b"", b"not json"),
        TwoPart(b"", b'{"data":' + b"[" * 100_000),
        TwoPart(b"", b"[1]"),
        TwoPart(b"", b'{"complete_final":"yes"}'),
        TwoPart(b"\xff", b""),
        TwoPart(b'"unheard of"', b""),
    ],
)
def test_what_no_worker_may_send_ends_the_answer(frame: TwoPart) -> None:
    reader = ResponseReader("json")
    reader.on_frame(frames_of(prologue())[0])
    (event,) = reader.on_frame(frame)
    assert isinstance(event, Ended) and event.fault is Fault.PROTOCOL
    assert reader.on_frame(TwoPart(b"", b"{}")) == []


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=5))
def test_whatever_comes_it_ends_exactly_once(frames: list[tuple[bytes, bytes]]) -> None:
    reader, events = ResponseReader("msgpack"), []
    for frame in frames:
        events += reader.on_frame(TwoPart(*frame))
    events += reader.on_eof()
    assert [isinstance(event, Ended) for event in events].count(True) == 1
    assert isinstance(events[-1], Ended)


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ({}, "cannot be read"),
        ({"id": "1"}, "over none"),
        ({"id": "1", "connection_info": {"transport": "quic-response", "info": "{}"}}, "over quic"),
        (
            {"id": "1", "connection_info": {"transport": "tcp_server", "info": "x"}},
            "cannot be read",
        ),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(
    control: dict[str, Any], message: str
) -> None:
    with pytest.raises(FrameError, match=message):
        decode_request_message(encode_two_part(json.dumps(control).encode(), b"{}"))


def test_a_recorded_request_of_the_frontend_is_read() -> None:
    recording = json.loads((RECORDED / "frontend_round_robin.json").read_text())
    (request,) = [frame for frame in recording["frames"] if frame["what"] == "A.request"][:1]
    (frame,) = RequestDecoder().feed(b64decode(request["b64"]))
    message = decode_request_message(frame.payload)
    assert message.body == request["body"] and message.codec == "msgpack"
    assert message.id == message.call_home.context == request["control"]["id"]
