"""Frames to the byte as Dynamo writes them, cut anywhere, and not believed beyond limits."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import VECTORS

from dynamo_router.runtime.request_planes import frames
from dynamo_router.runtime.request_planes.frames import (
    AckDecoder,
    FrameError,
    RequestDecoder,
    TwoPartDecoder,
    decode_two_part,
    encode_ack,
    encode_request,
    encode_two_part,
)

RECORDED = VECTORS / "request_plane"


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(RECORDED.glob("*.json")):
        for name, case in json.loads(path.read_text()).get("cases", {}).items():
            yield f"{path.stem}:{name}", case


CASES = dict(cases())


def test_there_are_recordings() -> None:
    assert len(CASES) > 10


@pytest.mark.parametrize("name", CASES)
def test_recorded_requests_and_acknowledgements_are_read_and_written(name: str) -> None:
    case = CASES[name]
    data = b64decode(case["request"]["b64"])
    (request,) = RequestDecoder().feed(data)
    assert request.path == case["request"]["path"]
    assert request.headers == case["request"]["headers"]
    assert encode_request(request.path, request.headers, request.payload) == data
    if "control" in case["request"]:
        assert json.loads(decode_two_part(request.payload).header) == case["request"]["control"]
    if (ack := case.get("ack")) is not None and "b64" in ack:
        data = b64decode(ack["b64"])
        assert AckDecoder().feed(data) == [ack["text"]]
        assert encode_ack(ack["text"]) == data


@pytest.mark.parametrize("name", CASES)
def test_recorded_answers_are_read_and_written(name: str) -> None:
    sides: dict[str, TwoPartDecoder] = {}
    for recorded in CASES[name].get("response_connection", ()):
        if "b64" not in recorded:
            continue
        data = b64decode(recorded["b64"])
        (frame,) = sides.setdefault(recorded["dir"], TwoPartDecoder()).feed(data)
        assert encode_two_part(*frame) == data
        assert (json.loads(frame.header) if frame.header else None) == recorded["header"]


REQUEST = encode_request("1f/ns/c/e", {"request-id": "x"}, encode_two_part(b"{}", b"body"))
STREAMS = [
    (RequestDecoder, REQUEST),
    (AckDecoder, encode_ack("Server overloaded: worker at capacity")),
    (TwoPartDecoder, encode_two_part(b'"sentinel"', b"\x00\xff")),
]


@given(st.sampled_from(STREAMS), st.lists(st.integers(1, 40)))
def test_a_stream_may_be_cut_anywhere(
    stream: tuple[Callable[[], Any], bytes], cuts: list[int]
) -> None:
    make, frame = stream
    data, decoder = frame * 3, make()
    found = []
    for cut in cuts:
        found += decoder.feed(data[:cut])
        data = data[cut:]
    found += decoder.feed(data)
    assert found == make().feed(frame) * 3
    assert not decoder.partial


@given(st.sampled_from(STREAMS), st.binary(max_size=80))
def test_garbage_is_refused_or_waited_for_and_nothing_else(
    stream: tuple[Callable[[], Any], bytes], garbage: bytes
) -> None:
    decoder = stream[0]()
    decoder.feed(garbage)
    if decoder.failure is not None:
        assert not decoder.partial and decoder.feed(stream[1]) == []


@pytest.mark.parametrize(
    ("decoder", "data", "message"),
    [
        (RequestDecoder(), b"\0\0\0\2{}" + b"\xff\xff\xff\xff", "larger than any may be"),
        (RequestDecoder(), b"\0\1\xff\0\2{}\0\0\0\0", "path or headers cannot be read"),
        (RequestDecoder(), b"\0\1a\0\2[]\0\0\0\0", "path or headers cannot be read"),
        (AckDecoder(), b"\x7f\xff\xff\xff", "larger than any may be"),
        (TwoPartDecoder(), b"\0" * 7 + b"\0" + b"\xff" * 8 + b"\0" * 8, "larger than any may be"),
        (TwoPartDecoder(), b"\xff" * 24, "larger than any may be"),
        (TwoPartDecoder(3), encode_two_part(b"", b"four"), "larger than any may be"),
        (TwoPartDecoder(), encode_two_part(b"x" * (1 << 18)), "larger than any may be"),
    ],
)
def test_lengths_that_lie_are_refused_before_anything_is_kept(
    decoder: Any, data: bytes, message: str
) -> None:
    assert decoder.feed(data) == [] and not decoder.partial
    assert message in str(decoder.failure)


def test_what_came_before_a_frame_that_cannot_be_is_good() -> None:
    decoder = TwoPartDecoder()
    good = encode_two_part(b"1", b"2")
    assert decoder.feed(good + b"\xff" * 24) == [(b"1", b"2")]
    assert decoder.failure is not None


def test_a_request_too_large_for_a_frame_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 10)
    with pytest.raises(FrameError, match="too large"):
        encode_request("a", {}, b"x" * 11)
    with pytest.raises(FrameError, match="too large"):
        encode_request("a" * 70_000, {}, b"")


@pytest.mark.parametrize("payload", [b"", b"x", encode_two_part(b"{}") + b"x", b"\0" * 23])
def test_a_payload_is_one_frame(payload: bytes) -> None:
    with pytest.raises(FrameError):
        decode_two_part(payload)
