"""What an endpoint's KV events are called in JetStream: the stream, its subjects, snapshots."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ....process.settings import bad_setting
from .. import KV_EVENTS, endpoint_subject

MAX_AGE_S = 3600.0
"""How long a message is kept, as in Dynamo, and as there DYN_NATS_STREAM_MAX_AGE changes it."""
MAX_BYTES = 1 << 30
"""What the stream may take on the server's disk; beyond, the oldest messages go."""
SNAPSHOT = "radix-state"
_OUTSIDE = re.compile(r"[^A-Za-z0-9-]")


@dataclass(frozen=True, slots=True)
class StreamNames:
    """Names by Dynamo's rule: dots, and all else that is no letter or digit, become dashes.

    Two endpoints may come to the same stream by that: their subjects tell them apart.
    """

    subject: str
    """the event plane's, which the stream keeps the messages of"""
    stream: str
    bucket: str
    """of the object store, for snapshots of the index"""

    @classmethod
    def of_endpoint(cls, namespace: str, component: str, endpoint: str) -> "StreamNames":
        """ValueError if a part is empty."""
        subject = endpoint_subject(namespace, component, endpoint, KV_EVENTS)
        place = subject.removesuffix(f".{KV_EVENTS}")
        return cls(subject, slug(subject), slug(f"{place}-radix-bucket"))

    @property
    def subjects(self) -> list[str]:
        """The event plane's, and what Dynamo's publishers of the time of JetStream send to."""
        return [self.subject, f"{self.stream}.*"]


def slug(text: str) -> str:
    """A name as JetStream takes it. ValueError if it is empty."""
    if not text:
        raise ValueError("an empty name")
    return _OUTSIDE.sub("-", text)


def max_age_s(environ: Mapping[str, str] | None = None) -> float:
    """How long messages are kept. ConfigError if the variable is no number above 0."""
    given = (os.environ if environ is None else environ).get("DYN_NATS_STREAM_MAX_AGE")
    if not given:
        return MAX_AGE_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise bad_setting("DYN_NATS_STREAM_MAX_AGE", f"{given!r} is no number of seconds above 0")
    return seconds
