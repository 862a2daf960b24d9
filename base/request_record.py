"""RequestRecord: what became of one request over HTTP. Its connection makes it, those that answer
write into it, and metrics, access log and spans read it once, when the request has ended."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import field

LEFT = 499
"""The status of a request whose connection ended before the head of an answer was sent."""
CLIENT_LEFT = "the client left"
"""The error of one whose client ended the connection."""


class Generation(NamedTuple):
    """What engines made for a request, in all of its answers."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    first_at: float | None
    """when the first text came, by the monotonic clock"""
    finish_reasons: tuple[str, ...]
    """of the answers that ended"""


class HttpTrace(Protocol):
    """The trace of one request, of which its requests to engines are parts."""

    @property
    def trace_id(self) -> str:
        """32 digits."""
        ...

    def step(self, name: str) -> AbstractContextManager[object]:
        """A part of the work, from here to the end of the block."""
        ...

    def ended(self, record: "RequestRecord") -> None:
        """All of it is over."""


class RequestRecord(msgspec.Struct):
    """One request, from the first byte of it to the last of its answer."""

    scope: Mapping[str, Any] = field(default_factory=dict)
    """of its connection; once its head was read, of the request, in ASGI's shape"""
    began: float = field(default_factory=time.monotonic)
    route: str = ""
    """the path of its route, with placeholders; empty until the route is known"""
    status: int = LEFT
    """of the answer's head, once that was sent"""
    request_id: str = ""
    """the one in the answer"""
    caller: str = ""
    """its name, where callers are known"""
    asked_model: str = ""
    """as the client names it"""
    model: str = ""
    """the one that answers: a name that exists"""
    error: str = ""
    """why it failed, also after its head was sent"""
    failure: int = 0
    """the status that an answer would have had which failed after its head was sent"""
    is_logged: bool = False
    """whether a line in the log says that it failed, and why"""
    generation: Callable[[], Generation] | None = None
    """counts what engines have made for it so far"""
    engine_requests: list[Any] = field(default_factory=list)
    """those that ended, where an access log wants them"""
    trace: HttpTrace | None = None


_record: ContextVar[RequestRecord | None] = ContextVar("request record", default=None)

current_record: Callable[[], RequestRecord | None] = _record.get
"""Of the request that this task answers; None: it came over another protocol."""
set_record: Callable[[RequestRecord], object] = _record.set
"""What this task does from now on is done for this request."""

_UNTRACED = nullcontext()


def traced(name: str) -> AbstractContextManager[object]:
    """A part of the work for this task's request: a span, where spans are made."""
    record = _record.get()
    return _UNTRACED if record is None or record.trace is None else record.trace.step(name)
