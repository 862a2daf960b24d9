"""The client of one worker of Dynamo's, which is called over Dynamo's request plane."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc

from ...runtime.clock import Clock
from ...runtime.components import NOTHING, data_of
from ...runtime.errors import InvalidRequestError, WorkerError
from ...runtime.request_planes import Fault, RequestClient, RequestError
from ..channels import Metadata
from ..engine_facts import EngineFacts
from ..failures import EngineCallError, Origin
from ..trtllm_client import EngineIdentity
from .dynamo_messages import AnswerWriter, canary_body, request_body

CANARY_AFTER_S = 10.0
"""A worker that was silent for so long is sent a small request, when its health is asked for."""
WAITING_MESSAGES = 64
DP_RANK_KEY = "x-dynamo-dp-rank"
_Code = grpc.StatusCode

# What a fault of the request plane is to failures.py; Origin.ENGINE where it is the worker's word.
_FAILURES = {
    Fault.UNREACHABLE: (Origin.CONNECT, _Code.UNAVAILABLE),
    Fault.UNAVAILABLE: (Origin.ENGINE, _Code.UNAVAILABLE),
    Fault.OVERLOADED: (Origin.ENGINE, _Code.RESOURCE_EXHAUSTED),
    Fault.SILENT: (Origin.SILENCE, _Code.UNAVAILABLE),
    Fault.REFUSED: (Origin.ENGINE, _Code.INTERNAL),
    Fault.BROKEN: (Origin.TRANSPORT, _Code.UNAVAILABLE),
    Fault.PROTOCOL: (Origin.ENGINE, _Code.INTERNAL),
    Fault.INVALID: (Origin.ENGINE, _Code.INVALID_ARGUMENT),
    Fault.FAILED: (Origin.ENGINE, _Code.INTERNAL),
    Fault.TOO_LARGE: (Origin.REQUEST_SIZE, _Code.RESOURCE_EXHAUSTED),
}
_ALIVE = (Fault.OVERLOADED, Fault.INVALID)
"""Answers to a canary that only somebody gives who is well."""


@dataclass(frozen=True, slots=True)
class DynamoRoute:
    """How an instance is called, and what its registration says of it."""

    transport: str
    address: str
    codec: str
    worker_id: int
    facts: EngineFacts = field(default_factory=EngineFacts)
    dp_size: int = 1
    dp_start: int = 0
    publisher_ids: tuple[int, ...] = ()
    """of its KV events, one for each rank; empty: not all are known"""


class DynamoClient:
    """Calls one instance. The plane is shared, and its owner's to close."""

    dialect = "dynamo"

    def __init__(self, route: DynamoRoute, plane: RequestClient, clock: Clock) -> None:
        self.address = route.address
        self.route = route
        """may be replaced where the registration says more"""
        self._plane = plane
        self._now = clock.now
        self._heard = float("-inf")
        self._calls: set[DynamoCall] = set()

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> "DynamoCall":
        """Start a generation, as TrtllmClient.generate does."""
        rank = next((int(value) for key, value in metadata or () if key == DP_RANK_KEY), None)
        return DynamoCall(lambda: self._messages(request, rank), timeout, self._calls)

    def origin_of(self, error: grpc.RpcError) -> Origin:
        return error.origin if isinstance(error, EngineCallError) else Origin.ROUTER

    async def embed(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> bytes:
        raise _unimplemented("embeddings")

    def get_tokenizer(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> "DynamoCall":
        return DynamoCall(_no_tokenizer, timeout, self._calls)

    async def check_health(self, *, timeout: float) -> EngineIdentity:
        """Send a canary if the worker was silent for CANARY_AFTER_S: its registration alone says
        that its process lives, not that it answers. WorkerError or grpc.RpcError if it does not.
        """
        if self._now() - self._heard >= CANARY_AFTER_S:
            try:
                async with asyncio.timeout(timeout):
                    await self._send_canary()
            except TimeoutError:
                raise WorkerError("it does not answer a canary") from None
        return self._identity()

    def doubt(self) -> None:
        """Let the next question for its health be a canary."""
        self._heard = float("-inf")

    async def describe(self, *, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        return self._identity(), self.route.facts

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        """Nothing is left to do: a call that is cancelled tells its worker."""
        return False, "ended with its call"

    async def close(self) -> None:
        """Cancel what still runs. Idempotent."""
        for call in list(self._calls):
            call.cancel()
        while self._calls:
            await asyncio.sleep(0)

    def _identity(self) -> EngineIdentity:
        route = self.route
        return EngineIdentity(route.worker_id, route.dp_size, route.publisher_ids)

    def _parts(self, body: object, request_id: str | None) -> AsyncGenerator[Any, None]:
        route = self.route
        return self._plane.stream(
            route.address, body, transport=route.transport, codec=route.codec, request_id=request_id
        )

    async def _messages(self, request: bytes, rank: int | None) -> AsyncIterator[bytes]:
        message, body = request_body(request, rank)
        writer = AnswerWriter(message)
        try:
            async with aclosing(self._parts(body, message.request_id)) as parts:
                async for part in parts:
                    self._heard = self._now()
                    data = data_of(part)
                    if data is not NOTHING and (answer := writer.on_part(data)) is not None:
                        yield answer
        except RequestError as error:
            if error.fault.down:
                self.doubt()
            raise
        yield writer.complete()

    async def _send_canary(self) -> None:
        try:
            async with aclosing(self._parts(canary_body(), None)) as parts:
                async for part in parts:
                    data_of(part)
        except RequestError as error:
            if error.fault not in _ALIVE:
                raise
        self._heard = self._now()


class DynamoCall:
    """A call under way; see EngineCall. It begins at once, whether or not anybody reads."""

    def __init__(
        self,
        messages: Callable[[], AsyncIterator[bytes]],
        timeout: float | None,
        calls: "set[DynamoCall]",
    ) -> None:
        self._messages = messages
        self._timeout = timeout
        self._ready: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._failure: BaseException | None = None
        self._done = False
        self._calls = calls
        calls.add(self)
        self._task = asyncio.create_task(self._pump(), name="dynamo call")
        self._task.add_done_callback(self._on_done)

    def cancel(self) -> bool:
        return self._task.cancel()

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        while True:
            while self._ready:
                message = self._ready.popleft()
                self._taken.set()
                yield message
            if self._done:
                if self._failure is not None:
                    raise self._failure
                return
            self._changed.clear()
            await self._changed.wait()

    async def _pump(self) -> None:
        async with asyncio.timeout(self._timeout):
            async for message in self._messages():
                self._ready.append(message)
                self._changed.set()
                while len(self._ready) >= WAITING_MESSAGES:  # a slow reader makes the worker wait
                    self._taken.clear()
                    await self._taken.wait()

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(self)
        self._done = True
        self._failure = _failure_of(task)
        self._changed.set()


def _failure_of(task: "asyncio.Task[None]") -> BaseException | None:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    if error is None or isinstance(error, grpc.RpcError):
        return error
    if isinstance(error, RequestError):
        origin, code = _FAILURES[error.fault]
        return EngineCallError(origin, code, str(error))
    if isinstance(error, InvalidRequestError):
        return EngineCallError(Origin.ENGINE, _Code.INVALID_ARGUMENT, str(error))
    if isinstance(error, WorkerError):
        return EngineCallError(Origin.ENGINE, _Code.INTERNAL, str(error))
    if isinstance(error, TimeoutError):
        text = "no answer by the deadline"
        return EngineCallError(Origin.DEADLINE, _Code.DEADLINE_EXCEEDED, text)
    return error


async def _no_tokenizer() -> AsyncIterator[bytes]:
    raise _unimplemented("a tokenizer")
    yield b""


def _unimplemented(what: str) -> EngineCallError:
    text = f"a worker of Dynamo's does not give {what} away"
    return EngineCallError(Origin.ENGINE, _Code.UNIMPLEMENTED, text)
