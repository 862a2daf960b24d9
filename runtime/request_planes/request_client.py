"""A caller's side of the request plane: answers to all requests come home to one port of ours."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Protocol
from uuid import uuid4

from .answer import Answer, CallHomeLine
from .faults import Fault, RequestError, fault_of_refusal
from .grpc_carrier import GrpcCarrier
from .messages import encode_request_message
from .response_reader import Data, Ended
from .tcp_carrier import TcpCarrier

CALL_HOME_TIMEOUT_S = 10.0
"""A worker that cannot read a request accepts it and is silent: hence a limit of our own."""
PROLOGUE_TIMEOUT_S = 60.0
"""A worker may come home before its engine has taken the request: that may take longer."""


class Carrier(Protocol):
    """Brings requests to workers; of what it brings back itself it tells the answer."""

    async def send(self, address: str, id: str, payload: bytes, answer: Answer) -> str: ...
    async def close(self) -> None: ...


class RequestClient:
    """One per process. Over TCP, gRPC, and what else is given as `carriers`, by transport."""

    def __init__(self, carriers: dict[str, Carrier] | None = None) -> None:
        self._tcp = TcpCarrier()
        self._carriers: dict[str, Carrier] = {
            "tcp": self._tcp,
            "grpc": GrpcCarrier(),
            **(carriers or {}),
        }
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
        self._listener = await loop.create_server(lambda: CallHomeLine(self), host, port)
        shown = f"[{host}]" if ":" in host else host
        self._address = f"{shown}:{self._listener.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Give up all answers and close all connections. Idempotent."""
        listener, self._listener = self._listener, None
        for answer in list(self._answers.values()):
            answer.on_event(Ended(Fault.BROKEN, "the client was closed"))
        for line in list(self._lines):
            line.close()
        for carrier in self._carriers.values():
            await carrier.close()
        if listener is not None:
            listener.close()
            await listener.wait_closed()
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
        request. Whoever got a part must not ask again elsewhere without counting it.
        """
        if self._listener is None:
            raise RuntimeError("the client was not started")
        id, subject = request_id or str(uuid4()), str(uuid4())
        payload = encode_request_message(id, self._address, subject, body, codec, metadata or {})
        answer = self._answers[subject] = Answer(codec)
        try:
            refusal = await self._carriers[transport].send(address, id, payload, answer)
            if refusal:
                raise RequestError(fault_of_refusal(refusal), f"{address}: {refusal}")
            await _begun(answer, address)
            while True:
                event = await answer.next()
                if isinstance(event, Data):
                    yield event.value
                elif event.fault is None:
                    return
                else:
                    raise RequestError(event.fault, f"{address}: {event.text}")
        finally:
            del self._answers[subject]
            answer.close()

    def answer_for(self, subject: str) -> Answer | None:
        return self._answers.get(subject)

    def on_line(self, line: CallHomeLine, here: bool) -> None:
        (self._lines.add if here else self._lines.discard)(line)


async def _begun(answer: Answer, address: str) -> None:
    """Wait until the worker has said that there will be an answer, or not."""
    for sign, seconds in (
        (answer.begun, CALL_HOME_TIMEOUT_S),
        (answer.promised, PROLOGUE_TIMEOUT_S),
    ):
        try:
            async with asyncio.timeout(seconds):
                await sign.wait()
        except TimeoutError:
            text = "it accepted the request and did not answer"
            raise RequestError(Fault.SILENT, f"{address}: {text}") from None
