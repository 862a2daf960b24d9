"""Bytes that nest without end, in what a peer may send or write: they are refused as others that
cannot be read. msgspec's RecursionError is no DecodeError, and ended loops with a traceback.
"""

from collections.abc import Callable
from typing import Any

import pytest

from dynamo_router.base.envelope import EventEnvelope, decode_envelope, encode_envelope
from dynamo_router.base.errors import EventError
from dynamo_router.runtime.components.instances import decode_instance
from dynamo_router.runtime.event_planes.zmq.channels import decode_channel
from dynamo_router.runtime.kv_stores import Entry
from dynamo_router.runtime.kv_stores.kubernetes.worker_metadata import normalized
from dynamo_router.runtime.request_planes.frames import FrameError, encode_two_part
from dynamo_router.runtime.request_planes.messages import decode_request_message
from dynamo_router.slots.peers import decode_message
from dynamo_router.workers.records.event_keys import decode_source
from dynamo_router.workers.records.model_card import decode_card

DEPTH = 100_000
JSON = b'{"x":' + b"[" * DEPTH + b"]" * DEPTH + b"}"
MSGPACK = b"\x81\xa1x" + b"\x91" * DEPTH + b"\xc0"
INSTANCE = "v1/instances/a/b/c/1"


def entry(decode: Callable[[Entry], Any], key: str) -> Callable[[bytes], Any]:
    return lambda value: decode(Entry(key, value, 1))


def control(header: bytes) -> Any:
    return decode_request_message(encode_two_part(header))


DECODERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "an envelope": (decode_envelope, MSGPACK),
    "a router's message": (decode_message, MSGPACK),
    "an instance": (entry(decode_instance, INSTANCE), JSON),
    "a model card": (entry(decode_card, "v1/mdc/a/b/c/1"), JSON),
    "an event source": (entry(decode_source, "v1/event_sources/a/b/c/1"), JSON),
    "an event channel": (entry(decode_channel, "v1/event_channels/a/b/c/1"), JSON),
    "Kubernetes' worker metadata": (normalized, JSON),
    "a request's control header": (control, JSON),
}


@pytest.mark.parametrize("kind", DECODERS)
def test_what_nests_without_end_cannot_be_read(kind: str) -> None:
    decode, message = DECODERS[kind]
    with pytest.raises((ValueError, EventError, FrameError)) as caught:
        decode(message)
    assert not isinstance(caught.value, RecursionError)
    assert len(str(caught.value)) < 500


def test_an_envelope_may_hold_anything() -> None:
    """What is in it is read by whom it is for."""
    envelope = EventEnvelope(1, 2, 3, "topic", MSGPACK)
    assert decode_envelope(encode_envelope(envelope)).payload == MSGPACK
