"""A bucket's stream in NATS: subjects of keys and leases, and what a message says of its key.

The stream is a bucket of NATS' own key-value layout, `$KV.<bucket>.<key>`, so its tools can read
it. A lease is a key too, one that the server deletes by itself; keys under it name it in a
header, and are there only as long as it is.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg, RetentionPolicy, StreamConfig

from .store import Entry

MARKER_TTL_S = 3600
"""How long the stream keeps the marker of a key that is gone."""
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
OPERATION = "KV-Operation"
LEASE = "Dynamo-Lease"
_MARKER = "Nats-Marker-Reason"
_OUTSIDE = re.compile(rb"[^A-Za-z0-9_/-]")
_OUTSIDE_STREAM = re.compile(rb"[^A-Za-z0-9/]")
_LEASES = "=lease."


class Kind(Enum):
    KEY = "key"
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Record:
    """A message as a fact: a key or a lease (its number) stands so, or is gone (entry None)."""

    kind: Kind
    name: str
    revision: int
    entry: Entry | None


class BucketSubjects:
    """The names that one bucket has in NATS."""

    def __init__(self, bucket: str) -> None:
        self.name = _escape(_OUTSIDE_STREAM, bucket, "-").replace("/", "_")
        self.stream = f"KV_{self.name}"
        self.all = f"$KV.{self.name}.>"
        self._keys = f"$KV.{self.name}."

    def key(self, key: str) -> str:
        return self._keys + _escape(_OUTSIDE, key, "=")

    def lease(self, lease: int) -> str:
        return f"{self._keys}{_LEASES}{lease:x}"

    def config(self) -> StreamConfig:
        return StreamConfig(
            name=self.stream,
            subjects=[self.all],
            max_msgs_per_subject=1,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_msg_ttl=True,
            subject_delete_marker_ttl=MARKER_TTL_S,
            duplicate_window=0.1,
        )

    def why_other(self, config: StreamConfig) -> str:
        """Why a stream of these settings is no bucket of ours; empty: it is. Its bounds in bytes,
        replicas and storage are its operator's."""
        if self.all not in (config.subjects or ()):
            return f"is of {', '.join(config.subjects or ()) or 'nothing'}, not of {self.all}"
        if not config.allow_msg_ttl or not config.subject_delete_marker_ttl:
            return "has no leases: its stream is made without allow_msg_ttl or delete markers"
        if config.retention != RetentionPolicy.LIMITS:
            kind = getattr(config.retention, "value", config.retention)
            return f"has retention {kind}, not limits: it keeps no keys"
        if config.max_age:
            # A key is written once and lives by its lease, which alone is written again.
            return f"forgets keys after {config.max_age:g} s (max_age)"
        if config.no_ack:
            return "acknowledges no write (no_ack)"
        if config.discard_new_per_subject:
            return "lets no key change (discard_new_per_subject)"
        return "is sealed" if config.sealed else ""

    def read_live(self, message: Msg, revision: int) -> Record | None:
        """What a message of a consumer says; None if its subject is not one of ours."""
        return self._read(message.subject, message.headers or {}, message.data, revision)

    def read_stored(self, message: RawStreamMsg) -> Record | None:
        """As `read_live`, of a message that was asked for."""
        headers = message.headers or {}
        return self._read(message.subject or "", headers, message.data or b"", message.seq or 0)

    def _read(
        self, subject: str, headers: dict[str, str], value: bytes, revision: int
    ) -> Record | None:
        name = subject.removeprefix(self._keys)
        gone = OPERATION in headers or _MARKER in headers
        try:
            if name.startswith(_LEASES):
                number = int(name.removeprefix(_LEASES), 16)
                entry = None if gone else Entry(name, b"", revision, number)
                return Record(Kind.LEASE, f"{number:x}", revision, entry)
            key = re.sub(
                rb"=([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), name.encode()
            ).decode()
            lease = int(headers[LEASE], 16) if LEASE in headers else None
        except ValueError:
            return None
        entry = None if gone else Entry(key, value, revision, lease)
        return Record(Kind.KEY, key, revision, entry)


def _escape(outside: re.Pattern[bytes], text: str, mark: str) -> str:
    return outside.sub(lambda found: f"{mark}{found[0][0]:02X}".encode(), text.encode()).decode()


ACK_PREFIX = "$JS.ACK."
_SHORT, _LONG = 9, 11
_TIMES_DELIVERED = 4  # the place of that token in the short form
_PLACES_MORE = 2  # in the long one


class Delivery(NamedTuple):
    """One delivery of a message by a consumer."""

    stream_sequence: int
    consumer_sequence: int
    """of this delivery, from 1 on"""
    pending: int
    """messages behind it that were not delivered yet"""


def read_delivery(reply: str) -> Delivery | None:
    """What the reply subject of a message says; None if it is not such a subject."""
    if not reply.startswith(ACK_PREFIX):
        return None
    tokens = reply.split(".")
    if len(tokens) == _SHORT:
        at = _TIMES_DELIVERED + 1
    elif len(tokens) >= _LONG:
        at = _TIMES_DELIVERED + _PLACES_MORE + 1
    else:
        return None
    stream, consumer, _, pending = tokens[at : at + 4]
    if not (stream.isdecimal() and consumer.isdecimal() and pending.isdecimal()):
        return None
    return Delivery(int(stream), int(consumer), int(pending))
