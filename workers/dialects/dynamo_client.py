"""The client of one worker of Dynamo's, which is called over Dynamo's request plane."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ...base.clock import Clock
from ...base.errors import InvalidRequestError, StatusCode, WorkerError
from ...runtime.components import NOTHING, beside, data_of
from ...runtime.request_planes import (
    Answer,
    AnswerListener,
    AnswerQueue,
    Fault,
    RequestClient,
    RequestError,
)
from ..cache_clearing import CLEAR_ENDPOINT, check_cleared
from ..channels import EngineCall, Metadata
from ..dynamo_route import DynamoRoute
from ..engine_facts import EngineFacts
from ..failures import EngineCallError, Origin
from ..trtllm_client import EngineIdentity
from .dynamo_messages import PART_DECODERS, AnswerWriter, PlainPart, canary_body, read_request
from .engine_client import DP_RANK_KEY
from .failed_call import FailedCall, failure_of, unimplemented

CANARY_AFTER_S = 10.0
"""A worker that was silent for so long is sent a small request, when its health is asked for."""

# What a fault of the request plane is to failures.py; Origin.ENGINE where it is the worker's word.
_FAILURES = {
    Fault.UNREACHABLE: (Origin.CONNECT, StatusCode.UNAVAILABLE),
    Fault.UNAVAILABLE: (Origin.ENGINE, StatusCode.UNAVAILABLE),
    Fault.OVERLOADED: (Origin.ENGINE, StatusCode.RESOURCE_EXHAUSTED),
    Fault.SILENT: (Origin.SILENCE, StatusCode.UNAVAILABLE),
    Fault.REFUSED: (Origin.ENGINE, StatusCode.INTERNAL),
    Fault.BROKEN: (Origin.TRANSPORT, StatusCode.UNAVAILABLE),
    Fault.PROTOCOL: (Origin.ENGINE, StatusCode.INTERNAL),
    Fault.INVALID: (Origin.ENGINE, StatusCode.INVALID_ARGUMENT),
    Fault.FAILED: (Origin.ENGINE, StatusCode.INTERNAL),
    Fault.TOO_LARGE: (Origin.REQUEST_SIZE, StatusCode.RESOURCE_EXHAUSTED),
}
_PUBLIC = {
    Fault.UNREACHABLE: "the worker could not be reached",
    Fault.UNAVAILABLE: "the worker takes no requests",
    Fault.OVERLOADED: "the worker has all the requests that it takes",
}
"""The text for clients where the plane's own text names endpoints."""
_ALIVE = (Fault.OVERLOADED, Fault.INVALID)
"""Answers to a canary that only a healthy worker gives."""


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
        self.calls: set[DynamoCall] = set()
        """those under way"""

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> "DynamoCall":
        """Start a generation, as TrtllmClient.generate does."""
        rank = next((int(value) for key, value in metadata or () if key == DP_RANK_KEY), None)
        return DynamoCall(self, request, timeout, rank)

    async def embed(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> bytes:
        raise _unimplemented("embeddings")

    def get_tokenizer(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> EngineCall:
        return FailedCall(_unimplemented("a tokenizer"))

    async def check_health(self, *, timeout: float) -> EngineIdentity:
        """Send a canary if the worker was silent for CANARY_AFTER_S: its registration alone says
        that its process lives, not that it answers. WorkerError or EngineCallError if it does not.
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

    async def prefetch(
        self, request: bytes, *, timeout: float, metadata: Metadata | None = None
    ) -> int | None:
        """Such engines have no call for it."""
        return None

    async def clear_kv_blocks(self, *, timeout: float) -> None:
        """Ask the worker's endpoint for it, which stands beside `generate`."""
        route = self.route
        address = beside(route.transport, route.address, CLEAR_ENDPOINT)
        if address is None:
            raise _unimplemented(CLEAR_ENDPOINT)
        asked = self._plane.stream(address, None, transport=route.transport, codec=route.codec)
        try:
            async with asyncio.timeout(timeout), aclosing(asked) as parts:
                answers = [data async for part in parts if (data := data_of(part)) is not NOTHING]
        except (RequestError, WorkerError, TimeoutError) as error:
            raise _failure_of(error) from None
        check_cleared(answers[-1] if answers else None)

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        """Nothing is left to do: a call that is cancelled tells its worker."""
        return False, "ended with its call"

    async def close(self) -> None:
        """Cancel what still runs. Idempotent."""
        for call in list(self.calls):
            call.cancel()

    def _identity(self) -> EngineIdentity:
        route = self.route
        return EngineIdentity(route.worker_id, route.dp_size, route.publisher_ids)

    def send(self, body: object, request_id: str | None, listener: AnswerListener) -> Answer:
        """Ask the worker; its answer goes to the listener."""
        route = self.route
        return self._plane.call(
            route.address,
            body,
            listener,
            transport=route.transport,
            codec=route.codec,
            request_id=request_id,
            decoders=PART_DECODERS,
        )

    def on_heard(self) -> None:
        """It said something: no canary is needed for a while."""
        self._heard = self._now()

    async def _send_canary(self) -> None:
        route = self.route
        try:
            answer = self._plane.stream(
                route.address, canary_body(), transport=route.transport, codec=route.codec
            )
            async with aclosing(answer) as parts:
                async for part in parts:
                    data_of(part)
        except RequestError as error:
            if error.fault not in _ALIVE:
                raise
        self._heard = self._now()


class DynamoCall:
    """A call under way; see EngineCall. It begins at once, with or without a reader."""

    def __init__(
        self, client: DynamoClient, request: bytes, timeout: float | None, rank: int | None
    ) -> None:
        self._client = client
        self._queue: AnswerQueue[bytes] = AnswerQueue()
        self._answer: Answer | None = None
        self._timer: asyncio.TimerHandle | None = None
        route = client.route
        try:
            asked = read_request(request, rank, route.codec)
        except InvalidRequestError as error:
            self._queue.end(_failure_of(error))
            return
        self._writer = AnswerWriter(asked.message, asked.prompt_tokens)
        self._answer = client.send(asked.body, asked.message.request_id or None, self)
        if timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout, self._on_late)
        client.calls.add(self)

    def cancel(self) -> bool:
        if self._queue.ended:
            return False
        self._queue.clear()
        self._end(asyncio.CancelledError())
        return True

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._queue.items()

    def on_part(self, part: Any) -> None:
        """See AnswerListener."""
        self._client.on_heard()
        try:
            data = part.data if type(part) is PlainPart else data_of(part)
            message = None if data is NOTHING else self._writer.on_part(data)
        except WorkerError as error:
            self._end(error)
            return
        if message is not None:
            assert self._answer is not None
            self._queue.put(message, self._answer)

    def on_end(self, fault: Fault | None, text: str) -> None:
        """See AnswerListener."""
        if fault is not None:
            public = _PUBLIC.get(fault, text)
            self._end(RequestError(fault, f"{self._client.route.address}: {text}", public=public))
            return
        try:
            message = self._writer.complete()
        except WorkerError as error:
            self._end(error)
            return
        assert self._answer is not None
        self._queue.put(message, self._answer)
        self._end(None)

    def _on_late(self) -> None:
        self._end(TimeoutError())

    def _end(self, error: BaseException | None) -> None:
        """It is over. What still runs is cancelled."""
        if isinstance(error, RequestError) and error.fault.down:
            self._client.doubt()
        if self._timer is not None:
            self._timer.cancel()
        self._client.calls.discard(self)
        self._queue.end(None if error is None else _failure_of(error))
        if self._answer is not None:
            self._answer.close()


def _failure_of(error: BaseException) -> BaseException:
    """What the reader of a call gets."""
    if isinstance(error, RequestError):
        origin, code = _FAILURES[error.fault]
        return EngineCallError(origin, code, str(error), public=error.public)
    return failure_of(error)


def _unimplemented(what: str) -> EngineCallError:
    return unimplemented(f"a worker of Dynamo's does not give {what} away")
