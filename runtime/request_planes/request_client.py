"""A caller's side of the request plane: answers to all requests come home to one port of ours."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol
from uuid import uuid4

from ...base.urls import joined
from ...transport.acceptor import BACKLOG
from .answer import Answer, AnswerListener, AnswerTimeouts
from .answer_queue import AnswerQueue
from .call_home import CallHomeLine
from .faults import Fault, RequestError
from .messages import encode_request_message
from .response_reader import PartDecoder
from .tcp_carrier import TcpCarrier


class Carrier(Protocol):
    """Brings requests to workers, and passes what comes back the same way to the answer."""

    async def send(self, address: str, id: str, payload: bytes, answer: Answer) -> None: ...
    async def close(self) -> None: ...


class RequestClient:
    """One per process. Over TCP, and what else is given as `carriers`, by transport."""

    def __init__(
        self,
        carriers: dict[str, Carrier] | None = None,
        timeouts: AnswerTimeouts | None = None,
    ) -> None:
        self._tcp, self._timeouts = TcpCarrier(), timeouts or AnswerTimeouts()
        self._carriers: dict[str, Carrier] = {"tcp": self._tcp, **(carriers or {})}
        self._listener: asyncio.Server | None = None
        self._address = ""
        self._answers: dict[str, Answer] = {}
        self._lines: set[CallHomeLine] = set()

    @property
    def transports(self) -> frozenset[str]:
        """What instances may have for transport to be called."""
        return frozenset(self._carriers)

    @property
    def address(self) -> str:
        """Where answers come home to; empty before `start`."""
        return self._address

    @property
    def connections(self) -> int:
        """To workers, over TCP."""
        return self._tcp.connections

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen for answers. `host` has to be one that workers reach."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: CallHomeLine(self), host, port, backlog=BACKLOG
        )
        self._address = joined(host, self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Give up all answers and close all connections. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # Not waited for: since Python 3.12 that waits for all connections, which peers hold.
            listener.close()
        answers = list(self._answers.values())
        sending = [answer.sending for answer in answers if answer.sending is not None]
        for answer in answers:
            answer.fail(Fault.BROKEN, "the client was closed")
        if sending:
            await asyncio.wait(sending)
        for line in list(self._lines):
            line.close()
        for carrier in self._carriers.values():
            await carrier.close()
        await asyncio.sleep(0)  # closed transports leave the loop one turn later

    async def stream(
        self,
        address: str,
        body: object,
        *,
        transport: str = "tcp",
        codec: str = "msgpack",
        request_id: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """The parts of the answer of an instance, by its transport and address.

        RequestError if it does not come, or ends too early. Closing the generator cancels the
        request. A caller that got a part must not ask again elsewhere without counting it.
        """
        parts = _Parts(address)
        parts.answer = self.call(
            address,
            body,
            parts,
            transport=transport,
            codec=codec,
            request_id=request_id,
            metadata=metadata,
        )
        try:
            async for part in parts.queue.items():
                yield part
        finally:
            parts.answer.close()

    def call(
        self,
        address: str,
        body: object,
        listener: AnswerListener,
        *,
        transport: str = "tcp",
        codec: str = "msgpack",
        request_id: str | None = None,
        metadata: dict[str, str] | None = None,
        decoders: Mapping[str, PartDecoder] | None = None,
    ) -> Answer:
        """Send a request; its answer's parts go to the listener, not before this has returned.

        Closing the answer cancels the request. `decoders` are those of the parts, by codec, if they
        are of a type (`part_decoders`).
        """
        if self._listener is None:
            raise RuntimeError("the client was not started")
        id, subject = request_id or str(uuid4()), os.urandom(16).hex()
        payload = encode_request_message(id, self._address, subject, body, codec, metadata or {})
        answer = Answer(codec, listener, lambda: self._forget(subject), self._timeouts, decoders)
        self._answers[subject] = answer
        if transport == "tcp" and self._tcp.send_at_once(address, id, payload, answer):
            return answer
        carrier = self._carriers[transport]
        answer.sending = asyncio.create_task(
            _bring(carrier, address, id, payload, answer), name=f"request to {address}"
        )
        return answer

    def _forget(self, subject: str) -> None:
        del self._answers[subject]

    def answer_for(self, subject: str) -> Answer | None:
        return self._answers.get(subject)

    def on_line(self, line: CallHomeLine, here: bool) -> None:
        (self._lines.add if here else self._lines.discard)(line)
        if here and self._listener is None:  # it was accepted before the listener closed
            line.close()


class _Parts:
    """Keeps the parts of an answer for a reader."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.queue: AnswerQueue[Any] = AnswerQueue()
        self.answer: Answer

    def on_part(self, part: Any) -> None:
        self.queue.put(part, self.answer)

    def on_end(self, fault: Fault | None, text: str) -> None:
        error = None if fault is None else RequestError(fault, f"{self._address}: {text}")
        self.queue.end(error)


async def _bring(carrier: Carrier, address: str, id: str, payload: bytes, answer: Answer) -> None:
    try:
        await carrier.send(address, id, payload, answer)
    except RequestError as error:
        answer.fail(error.fault, str(error))
    finally:
        answer.sending = None
