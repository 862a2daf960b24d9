"""The envelope around every message, against captured ones and against junk."""

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.places import VECTORS

from dynamo_router.base.envelope import EventEnvelope, decode_envelope, encode_envelope
from dynamo_router.base.errors import EventError

# A captured message, so that the format is held also where the vectors are not at hand.
CAPTURED = (
    "haxwdWJsaXNoZXJfaWTPAA2WutjnFpyoc2VxdWVuY2UArHB1Ymxpc2hlZF9hdM8AAAGh+KzPSKV0b3BpY7dhY3RpdmVf"
    "c2VxdWVuY2VzX2V2ZW50c6dwYXlsb2FkxI6FqnJlcXVlc3RfaWTZJGEwYzYzZjg0LTFjOTctNGIwMC05OTM2LTIzYTNk"
    "MzBhZjFlY6Z3b3JrZXKCqXdvcmtlcl9pZM99e6H4rFOcG6dkcF9yYW5rAKRkYXRhtE1hcmtQcmVmaWxsQ29tcGxldGVk"
    "qXJvdXRlcl9pZM99e6H4rFOcG6lsb3JhX25hbWXA"
)

u64 = st.integers(0, 2**64 - 1)
envelopes = st.builds(EventEnvelope, u64, u64, u64, st.text(max_size=20), st.binary(max_size=40))


def test_a_captured_message_is_read_and_written_byte_for_byte() -> None:
    message = base64.b64decode(CAPTURED)
    envelope = decode_envelope(message)
    assert envelope.publisher_id == 3824903944345244
    assert envelope.sequence == 0
    assert envelope.published_at == 1795173437256
    assert envelope.topic == "active_sequences_events"
    assert len(envelope.payload) == 142
    assert encode_envelope(envelope) == message


def test_every_captured_message_survives_the_round_trip() -> None:
    samples = json.loads((VECTORS / "nats_messages.json").read_text())["samples"]
    enveloped = [s for s in samples if "envelope" in s]
    assert len(enveloped) > 8
    for sample in enveloped:
        message = base64.b64decode(sample["payload_b64"])
        envelope = decode_envelope(message)
        for name, value in sample["envelope"].items():
            assert getattr(envelope, name) == value
        assert encode_envelope(envelope) == message


@given(envelopes)
@settings(max_examples=50)
def test_any_envelope_survives_the_round_trip(envelope: EventEnvelope) -> None:
    assert decode_envelope(encode_envelope(envelope)) == envelope


def test_fields_of_a_later_version_are_ignored() -> None:
    message = bytearray(encode_envelope(EventEnvelope(1, 2, 3, "t", b"p")))
    message[0] += 1  # one more pair in the map
    message += b"\xa3new\xc0"
    assert decode_envelope(bytes(message)).payload == b"p"


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xc1",
        b"hello",
        b"{}",
        b"\x80",
        encode_envelope(EventEnvelope(1, 2, 3, "topic", b"payload"))[:-1],
        encode_envelope(EventEnvelope(-1, 2, 3, "topic", b"payload")),
        encode_envelope(EventEnvelope(1, "2", 3, "topic", b"payload")),  # type: ignore[arg-type]
        encode_envelope(EventEnvelope(1, 2, 3, "topic", "payload")),  # type: ignore[arg-type]
        encode_envelope(EventEnvelope(1, 2, 3, "t@pic", b"payload")).replace(b"@", b"\xff"),
    ],
)
def test_junk_is_an_event_error(junk: bytes) -> None:
    with pytest.raises(EventError):
        decode_envelope(junk)


@given(st.binary(max_size=60))
@settings(max_examples=100)
def test_no_bytes_do_worse_than_an_event_error(junk: bytes) -> None:
    with pytest.raises(EventError):
        decode_envelope(junk)
