"""Instances: processes that serve an endpoint, as they stand in the key-value store.

| generation | key | value |
|---|---|---|
| today | `v1/instances/{namespace}/{component}/{endpoint}/{id}` | all of it, as JSON |
| seed | `/services/{namespace}/{component}/{endpoint}/{instance}`, or `...{endpoint}-{id}` | JSON |

An id is the lease's, in hexadecimal in keys and addresses, and a number in JSON. Writers that know
only doubles round that number: the key's id counts. Both generations are read; which one is written
is configured.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from ...base.errors import UNREADABLE
from ...base.identity import MAX_WORKER_ID, is_same_id
from ..kv_stores import Entry

INSTANCES = "v1/instances"
SERVICES = "/services"
Generation: TypeAlias = Literal["today", "seed"]
GENERATIONS = get_args(Generation)
_NAME = re.compile(r"[^/.\s\0]+")
_HEX = re.compile(r"[0-9A-Fa-f]+")  # int() takes signs, spaces and underscores besides


@dataclass(frozen=True, slots=True, order=True)
class EndpointName:
    """`{namespace}.{component}.{endpoint}`."""

    namespace: str
    component: str
    endpoint: str

    def __post_init__(self) -> None:
        """ValueError for a part that is no name."""
        for part in (self.namespace, self.component, self.endpoint):
            check_part(part)

    @classmethod
    def parse(cls, text: str) -> "EndpointName":
        """From `namespace.component.endpoint`, with or without `dyn://`. ValueError."""
        parts = text.removeprefix("dyn://").split(".")
        if len(parts) != 3:
            raise ValueError(f"an endpoint is namespace.component.endpoint, not {text!r}")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.component}.{self.endpoint}"

    @property
    def prefix(self) -> str:
        """How the keys of its instances begin."""
        return f"{self.namespace}/{self.component}/{self.endpoint}/"


def check_part(part: str) -> str:
    """A namespace's, component's or endpoint's name; ValueError if it can be none."""
    if not _NAME.fullmatch(part):
        raise ValueError(f"a name has no dot, slash or space and is not empty, unlike {part!r}")
    return part


@dataclass(frozen=True, slots=True)
class Instance:
    """One process that serves one endpoint. `transport` and `address`: how to call it."""

    name: EndpointName
    instance_id: int
    transport: str
    """`tcp`, `nats_tcp` or another"""
    address: str
    """of `tcp`: HOST:PORT/PATH; of `nats_tcp`: the subject"""
    codec: str = "json"

    def key(self, generation: Generation) -> tuple[str, str]:
        """(bucket, key) where it stands."""
        bucket = INSTANCES if generation == "today" else SERVICES
        return bucket, f"{self.name.prefix}{self.instance_id:x}"

    def value(self) -> bytes:
        name = self.name
        return msgspec.json.encode(
            {
                "type": "Endpoint",
                "component": name.component,
                "endpoint": name.endpoint,
                "namespace": name.namespace,
                "instance_id": self.instance_id,
                "transport": {self.transport: self.address},
                "request_plane_codec": self.codec,
            }
        )


def path_of(name: EndpointName, instance_id: int) -> str:
    """What requests over TCP to an instance are addressed to."""
    return f"{instance_id:x}/{name.namespace}/{name.component}/{name.endpoint}"


def subject_of(name: EndpointName, instance_id: int) -> str:
    """What requests over NATS to an instance are addressed to."""
    return f"{name.namespace}_{name.component}.{name.endpoint}-{instance_id:x}"


def beside(transport: str, address: str, endpoint: str) -> str | None:
    """The address of another endpoint of an instance; None if its address is of no known form."""
    before, dot, last = address.rpartition("/" if transport == "tcp" else ".")
    if not before or transport not in ("tcp", "nats_tcp"):
        return None
    instance = "" if dot == "/" else f"-{last.rpartition('-')[2]}"
    return f"{before}{dot}{endpoint}{instance}"


class _Value(msgspec.Struct):
    transport: dict[str, Any]
    namespace: str | None = None
    component: str | None = None
    endpoint: str | None = None
    instance_id: int | float | None = None
    request_plane_codec: str | None = None


def decode_instance(entry: Entry) -> Instance:
    """The instance of a key of either bucket. ValueError if key or value is none's, or they
    contradict each other."""
    name, instance_id = _read_key(entry.key)
    try:
        read = msgspec.json.decode(entry.value, type=_Value)
    except UNREADABLE as error:
        raise ValueError(f"not an instance: {error}") from None
    written = (read.namespace, read.component, read.endpoint)
    there = (name.namespace, name.component, name.endpoint)
    same_id = read.instance_id is None or is_same_id(read.instance_id, instance_id)
    if not same_id or any(a not in (None, b) for a, b in zip(written, there, strict=True)):
        value = (*written, read.instance_id)
        raise ValueError(f"the value names {value}, its key {(*there, instance_id)}")
    for transport, address in read.transport.items():
        if isinstance(address, str) and address:
            codec = read.request_plane_codec or "json"
            return Instance(name, instance_id, transport, address, codec)
    raise ValueError("not an instance: it has no transport")


def read_id(text: str) -> int:
    """An instance's id as it stands in keys. ValueError if it can be none."""
    if not _HEX.fullmatch(text):
        raise ValueError(f"{text[:100]!r} is not an instance's id")
    instance_id = int(text, 16)
    if instance_id > MAX_WORKER_ID:
        raise ValueError(f"{text[:100]!r} is larger than an instance's id can be")
    return instance_id


def _read_key(key: str) -> tuple[EndpointName, int]:
    parts = key.split("/")
    if len(parts) == 3 and "-" in parts[2]:
        endpoint, _, last = parts[2].rpartition("-")
        parts = [parts[0], parts[1], endpoint, last]
    if len(parts) != 4:
        raise ValueError(f"{key!r} is not namespace/component/endpoint/instance")
    return EndpointName(*parts[:3]), read_id(parts[3].rpartition("-")[2])
