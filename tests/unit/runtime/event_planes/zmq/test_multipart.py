"""The form of messages and channels is Dynamo's, as recorded; what is not of it is refused."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import VECTORS

from dynamo_router.base.envelope import decode_envelope
from dynamo_router.runtime.event_planes import endpoint_subject
from dynamo_router.runtime.event_planes.zmq import (
    Channel,
    MultipartError,
    decode_channel,
    decode_multipart,
    encode_multipart,
)
from dynamo_router.runtime.event_planes.zmq.channels import topic_prefix
from dynamo_router.runtime.event_planes.zmq.multipart import MOST_BYTES
from dynamo_router.runtime.kv_stores import Entry

CHANNELS = VECTORS / "dynamo_event_channels.json"
RECORDED = json.loads(CHANNELS.read_text())


def frames_of(message: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(frame) for frame in message["frames_b64"]]


@pytest.mark.parametrize("message", RECORDED["messages"], ids=lambda each: each["topic"])
def test_recorded_messages_are_read_and_written_to_the_same_bytes(message: dict[str, Any]) -> None:
    frames, head = frames_of(message), message["envelope"]
    payload = decode_multipart(frames, message["topic"], head["publisher_id"])
    envelope = decode_envelope(payload)
    assert (envelope.publisher_id, envelope.sequence, envelope.topic) == (
        head["publisher_id"],
        head["sequence"],
        head["topic"],
    )
    again = encode_multipart(message["topic"], envelope.publisher_id, envelope.sequence, payload)
    assert again == frames


@pytest.mark.parametrize("each", RECORDED["channels"], ids=lambda each: each["value"]["topic"])
def test_recorded_channels_are_read_and_written_as_they_were(each: dict[str, Any]) -> None:
    value = each["value"]
    channel = decode_channel(Entry("", json.dumps(value).encode(), 0))
    assert json.loads(channel.value()) == value
    assert list(json.loads(channel.value())) == list(value)
    file = each["file"].removeprefix("v1/event_channels/")
    assert "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in channel.key) == file
    subject = endpoint_subject("dynamo", "backend", "generate", value["topic"])
    assert channel.subject == subject
    assert Channel.over_zmq(subject, channel.publisher_id, channel.where) == channel


GOOD = encode_multipart("kv-events", 7, 3, b"payload")


@pytest.mark.parametrize(
    "frames",
    [
        [],
        GOOD[:3],
        [*GOOD, b""],
        [b"kv-events2", *GOOD[1:]],
        [GOOD[0], b"", *GOOD[2:]],
        [*GOOD[:2], b"123456789", GOOD[3]],
        [GOOD[0], (8).to_bytes(8, "big"), *GOOD[2:]],
        [*GOOD[:3], b""],
        [*GOOD[:3], GOOD[3][:-1]],
        [*GOOD[:3], GOOD[3] + b"x"],
        [*GOOD[:3], b"\x02" + GOOD[3][1:]],
    ],
)
def test_what_is_no_message_is_refused(frames: list[bytes]) -> None:
    assert decode_multipart(GOOD, "kv-events", 7) == b"payload"
    with pytest.raises(MultipartError):
        decode_multipart(frames, "kv-events", 7)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_frames_are_a_message_or_refused(frames: list[bytes]) -> None:
    try:
        assert isinstance(decode_multipart(frames, "t", 1), bytes)
    except MultipartError:
        pass


def test_what_is_too_long_is_not_written() -> None:
    with pytest.raises(ValueError, match="longer than"):
        encode_multipart("t", 1, 1, bytes(MOST_BYTES + 1))
    with pytest.raises(ValueError):
        encode_multipart("t", 1 << 64, 1, b"")


@pytest.mark.parametrize(
    "where",
    [
        "ipc:///tmp/x",
        "tcp://host",
        "tcp://host:0",
        "tcp://host:70000",
        "tcp://*:5",
        "tcp://.host:5",
        "tcp://-host:5",
        "inproc://x",
        5,
    ],
)
def test_a_channel_at_no_address_is_refused(where: object) -> None:
    value = RECORDED["channels"][0]["value"]
    bad = {**value, "transport": {"kind": "Zmq", "config": {"endpoint": where}}}
    with pytest.raises(ValueError, match="no address|not an event channel"):
        decode_channel(Entry("", json.dumps(bad).encode(), 0))


@pytest.mark.parametrize("subject", ["a.b", "namespace.n.component.c.endpoint.e.*", "x" * 9])
def test_a_subject_is_a_topic_of_an_endpoint(subject: str) -> None:
    with pytest.raises(ValueError):
        topic_prefix(subject)
    odd = endpoint_subject("n.1", "c/2", "e 3", "kv-events")
    assert topic_prefix(odd) == "namespace/n.1/component/c/2/endpoint/e 3/topic/kv-events/"
