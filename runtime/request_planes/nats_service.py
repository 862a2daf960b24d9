"""NATS's service protocol (ADR-32): `$SRV.PING`, `INFO` and `STATS` of what is served over NATS.

Each is asked of all services, of those of one name, or of one id. Pure: subjects and JSON; the
carrier of NATS brings them. `nats micro` and NATS's own clients ask.
"""

import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

import msgspec

from ...base.package_version import package_version
from ...base.urls import redact_text
from .answer_writer import Handler, RequestContext, end_parts

GROUP = "q"
"""The queue group of endpoints, NATS's usual one. Control subjects have none: all answer."""
_VERBS = ("PING", "INFO", "STATS")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_LONGEST_ERROR = 200


@dataclass(slots=True)
class EndpointStats:
    """What an endpoint of a service has had to do."""

    name: str
    subject: str
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    processing_ns: int = 0

    def on_request(self, refusal: str) -> str:
        """A request came; `refusal` is its acknowledgement, "" if it is taken."""
        self.requests += 1
        if refusal:
            self._on_error(refusal)
        return refusal

    def counted(self, handler: Handler) -> Handler:
        """A handler whose time and failures are counted here."""

        async def handle(body: Any, context: RequestContext) -> AsyncIterator[object]:
            begun = time.perf_counter_ns()
            parts = handler(body, context)
            try:
                async for part in parts:
                    yield part
            except Exception as error:
                self._on_error(f"{type(error).__name__}: {error}")
                raise
            finally:
                self.processing_ns += time.perf_counter_ns() - begun
                await end_parts(parts)

        return handle

    def _on_error(self, text: str) -> None:
        self.errors += 1
        self.last_error = redact_text(text)[:_LONGEST_ERROR]


@dataclass(slots=True)
class NatsService:
    """A component of one process, as NATS's tools see it."""

    name: str
    """letters, digits, - and _: see `service_name`"""
    id: str = field(default_factory=lambda: token_hex(11))
    endpoints: list[EndpointStats] = field(default_factory=list)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def control_subjects(self) -> dict[str, str]:
        """The subjects that are asked, and what each asks."""
        ends = ("", f".{self.name}", f".{self.name}.{self.id}")
        return {f"$SRV.{verb}{end}": verb for verb in _VERBS for end in ends}

    def answer(self, verb: str) -> str:
        """The JSON that answers PING, INFO or STATS, whatever the question's payload."""
        facts: dict[str, Any] = {
            "type": f"io.nats.micro.v1.{verb.lower()}_response",
            "name": self.name,
            "id": self.id,
            "version": _version(),
            "metadata": {},
        }
        if verb == "INFO":
            facts["description"] = ""
            facts["endpoints"] = [{**_place(each), "metadata": {}} for each in self.endpoints]
        elif verb == "STATS":
            facts["started"] = self.started.isoformat(timespec="milliseconds")[:-6] + "Z"
            facts["endpoints"] = [{**_place(each), **_counts(each)} for each in self.endpoints]
        return msgspec.json.encode(facts).decode()


def service_name(namespace: str, component: str) -> str:
    """A component's name as a service: Dynamo's, without what the protocol does not allow."""
    return _NOT_IN_NAMES.sub("-", f"{namespace}_{component}")


def _place(endpoint: EndpointStats) -> dict[str, str]:
    return {"name": endpoint.name, "subject": endpoint.subject, "queue_group": GROUP}


def _counts(endpoint: EndpointStats) -> dict[str, Any]:
    return {
        "num_requests": endpoint.requests,
        "num_errors": endpoint.errors,
        "last_error": endpoint.last_error,
        "processing_time": endpoint.processing_ns,
        "average_processing_time": endpoint.processing_ns // max(1, endpoint.requests),
        "data": None,
    }


def _version() -> str:
    """This package's, of three numbers: the protocol knows only semantic versions."""
    found = _VERSION.match(package_version())
    return found[0] if found else "0.0.0"
