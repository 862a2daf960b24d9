"""Types of the kernel of one request and its answer; its users import exchange.py."""

import asyncio
from typing import final

from ...base.request_record import RequestRecord
from .asgi import Headers, Message, Scope
from .exchange import Carrier

@final
class Exchange:
    """From the end of a request's head to the end of its answer, as ASGI's `receive` and `send`.

    An answer of no length goes in chunks; to a client of HTTP/1.0, which knows none, until the
    connection ends. Its head goes with the first of its body. RuntimeError for an answer that is
    none: headers with line breaks, or a body of another length than they give.
    """

    scope: Scope
    record: RequestRecord
    keep_alive: bool
    unread: int
    """bytes of the body that came and are not read yet"""
    body_ended: bool
    started: bool
    sent: bool
    """its head was, to a client that was there"""
    ended: bool
    gone: bool
    def __init__(
        self,
        carrier: Carrier,
        transport: asyncio.Transport,
        scope: Scope,
        record: RequestRecord,
        *,
        keep_alive: bool,
        expects: bool = False,
        body: bytes | None = None,
    ) -> None:
        """`record` gets the status of a head that is sent. `expects`: the client sends no body
        before a 100 Continue. `body`: all of it, where it has come."""

    def on_body(self, data: bytes) -> None: ...
    def on_body_end(self) -> None: ...
    def on_gone(self) -> None:
        """The connection is lost; what is still sent goes nowhere."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing of it went to a client: it was gone, or what came was no request."""

    async def receive(self) -> Message:
        """The next part of the body; after the last one, and at once if the client left or was
        answered, http.disconnect."""

    def whole_body(self) -> bytes | None:
        """The body, if all of it has come, none was read and it is in one piece, or not long; None:
        see `receive`."""

    async def send(self, message: Message) -> None:
        """Waits while the client does not read."""

    def write(self, data: bytes, *, more: bool = True) -> None:
        """A part of the body, or with `more` false the last of it; nothing to a client that is
        gone."""

    def begin(self, status: int, headers: Headers, lines: bytes = b"") -> None:
        """The answer's head; `lines`: headers as they are sent, of which none says how long the
        answer is or whether the connection stays."""

def refusal(status: int, body: bytes) -> bytes:
    """An answer in JSON after which the connection ends, of a request that no application saw."""
