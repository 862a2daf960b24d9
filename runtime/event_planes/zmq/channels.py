"""Under which key a publisher is found, and what stands there.

`v1/event_channels/{scope}/topic/{topic}/{publisher}`, the publisher in hexadecimal. A scope is
`namespace/{namespace}/component/{component}/endpoint/{endpoint}`.
Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/dynamo_event_channels.json`).
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec

from ....base.errors import UNREADABLE
from ...kv_stores import Entry
from .. import endpoint_subject

EVENT_CHANNELS = "v1/event_channels"
NATS, ZMQ = "Nats", "Zmq"
_ADDRESS = re.compile(
    r"tcp://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9._-]{0,252}):([0-9]{1,5})"
)


@dataclass(frozen=True, slots=True)
class Channel:
    """A publisher on a topic of an endpoint, and where to subscribe to it.

    `kind` says over what; `where` is the address of its socket over ZMQ, tcp://HOST:PORT, and the
    beginning of its subjects over NATS.
    """

    namespace: str
    component: str
    endpoint: str
    topic: str
    publisher_id: int
    kind: str
    where: str

    @classmethod
    def over_zmq(cls, subject: str, publisher_id: int, address: str) -> "Channel":
        """That of a publisher on a subject. ValueError if it is not one of an endpoint's."""
        return cls(*split_subject(subject), publisher_id, ZMQ, address)

    @property
    def subject(self) -> str:
        return endpoint_subject(self.namespace, self.component, self.endpoint, self.topic)

    @property
    def key(self) -> str:
        """In the bucket EVENT_CHANNELS."""
        return f"{topic_prefix(self.subject)}{self.publisher_id:x}"

    def value(self) -> bytes:
        field = "endpoint" if self.kind == ZMQ else "subject_prefix"
        channel: dict[str, Any] = {
            "type": "EventChannel",
            "scope": channel_scope(self.namespace, self.component, self.endpoint),
            "topic": self.topic,
            "instance_id": self.publisher_id,
            "transport": {"kind": self.kind, "config": {field: self.where}},
        }
        return msgspec.json.encode(channel)


class _Endpoint(msgspec.Struct):
    namespace: str
    component: str
    name: str


class _Scope(msgspec.Struct):
    endpoint: _Endpoint


class _Transport(msgspec.Struct):
    kind: str
    config: dict[str, Any]


class _Value(msgspec.Struct):
    scope: _Scope
    topic: str
    instance_id: int
    transport: _Transport


_decode = msgspec.json.Decoder(_Value).decode


def decode_channel(entry: Entry) -> Channel:
    """ValueError for what is no channel, or one at an address that is none."""
    try:
        read = _decode(entry.value)
    except UNREADABLE as error:
        raise ValueError(f"not an event channel: {error}") from None
    kind, scope = read.transport.kind, read.scope.endpoint
    where = read.transport.config.get("endpoint" if kind == ZMQ else "subject_prefix")
    if not isinstance(where, str):
        raise ValueError("not an event channel: it has no address")
    if kind == ZMQ:
        check_address(where)
    if not 0 <= read.instance_id < 1 << 64:
        raise ValueError(f"{read.instance_id} is no publisher's id")
    return Channel(
        scope.namespace, scope.component, scope.name, read.topic, read.instance_id, kind, where
    )


def check_address(address: str) -> str:
    """An address to connect to; ValueError if it is not tcp://HOST:PORT."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise ValueError(f"no address of a socket: {address[:100]!r}")
    return address


def channel_scope(namespace: str, component: str, endpoint: str) -> dict[str, Any]:
    """The scope as values have it."""
    named = {"namespace": namespace, "component": component, "name": endpoint}
    return {"kind": "endpoint", "endpoint": named}


def scope_prefix(namespace: str, component: str, endpoint: str) -> str:
    """How the keys of an endpoint's channels begin."""
    return f"namespace/{namespace}/component/{component}/endpoint/{endpoint}/topic/"


def topic_prefix(subject: str) -> str:
    """How the keys of a subject's channels begin. ValueError if it is not one of an endpoint's."""
    namespace, component, endpoint, topic = split_subject(subject)
    return f"{scope_prefix(namespace, component, endpoint)}{topic}/"


def split_subject(subject: str) -> tuple[str, str, str, str]:
    """(namespace, component, endpoint, topic), as `endpoint_subject` was given them."""
    parts = subject.split(".")
    if len(parts) != 7 or parts[0:6:2] != ["namespace", "component", "endpoint"]:
        raise ValueError(f"{subject!r} is no topic of an endpoint")
    if any(part in ("", "*", ">") for part in parts):
        raise ValueError(f"{subject!r}: over ZMQ a subject is one topic of one endpoint")
    namespace, component, endpoint, topic = (unquote(part) for part in (*parts[1:6:2], parts[6]))
    return namespace, component, endpoint, topic
