"""PrefillConsumer: a prefill engine's part in the queue: pulls prompts, has them computed, writes
their blocks to the decode engine that asked, and acknowledges once that has them.

A message is settled in one of these ways: acknowledged when its blocks have landed or its attempt
is over; returned, for another engine, when this one drains or something passes; a dead letter, with
a reason, when no engine can do it. An engine that dies settles nothing: the message comes back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from structlog import get_logger

from ...base.errors import InvalidRequestError, NoWorkersError, RouterError, WorkerError
from ...process.supervised import stopped, supervise
from ...runtime.kv_stores import StoreError
from ...runtime.work_queues import DeadLetters, Delivery, GroupReader, WorkQueue
from ..transfer import CORRUPT, Grant, Ticket, Transfer, TransferError
from .config import PrefillQueueConfig
from .messages import (
    Ask,
    Cancelled,
    QueueMessageError,
    RemotePrefillRequest,
    Reply,
    read_request,
    read_words,
)
from .metrics import QueueMetrics
from .names import QueueNames

ASK_S = 2.0
"""How long a decode engine may take to answer: above what it may take to see blocks land."""
AGAIN_S = 0.2
"""After which a message is delivered again that something stands in the way of."""
_MOST, _MOST_BYTES = 65536, 64 << 20
_CHECK_S = 1.0
_MOST_KNOWN = 1024

log = get_logger(__name__)
T = TypeVar("T")


class ComputedPrompt(NamedTuple):
    """A prompt that an engine has computed and keeps."""

    transfer: Transfer[Any]
    """of the rank that has it"""
    blocks: list[int]
    hashes: list[int]
    """of its blocks, a partial one last"""


class PromptComputer(Protocol):
    """An engine that computes prompts for others."""

    @property
    def transfer(self) -> Transfer[Any]:
        """Of one of its ranks: all speak to the same peers."""
        ...

    def compute(self, request: RemotePrefillRequest) -> AbstractAsyncContextManager[ComputedPrompt]:
        """Computed when entered, and kept until left. InvalidRequestError if it never can be,
        NoWorkersError or WorkerError if it cannot be now."""
        ...


class _Target(NamedTuple):
    """Where the blocks of a prompt go."""

    grant: Grant
    ends_at: float
    """by the loop's clock, when its decode engine takes it back: not later"""
    metadata: list[bytes]
    """of that: what the store has, if anything, and its own word, which is newer"""


class _Again(RouterError):
    """Another try, by this engine or another one, may do better."""


class PrefillConsumer:
    """From `start` to `close`."""

    def __init__(
        self,
        queue: WorkQueue,
        names: QueueNames,
        config: PrefillQueueConfig,
        computer: PromptComputer,
        metrics: QueueMetrics,
        *,
        worker_id: int,
        model: str,
        find_metadata: Callable[[str], Awaitable[bytes | None]] | None = None,
    ) -> None:
        """`find_metadata`: of a decode engine, in the store; what its answer has is used where the
        store does not have it, or is away."""
        self._queue, self._names, self._config = queue, names, config
        self._computer, self._metrics, self._find = computer, metrics, find_metadata
        self._model = model
        self._known: dict[str, bytes] = {}
        """metadata of decode engines that the store had, the first asked for first"""
        self._dead = DeadLetters(queue.connection, names.dead)
        groups = (names.group(config), names.own_group(worker_id, config))
        slots = config.prefill_queue_slots
        self._readers = [GroupReader(queue, each, self._handle, slots) for each in groups]
        self._running: dict[str, asyncio.Task[None]] = {}
        self._burials: set[asyncio.Task[None]] = set()
        self._draining = self._is_killed = False
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.on_begun: list[Callable[[RemotePrefillRequest], None]] = []
        """called when a prompt is given to the engine"""
        self.on_written: list[Callable[[Transfer[Any], Ticket], None]] = []
        """called when a write is over, however it ended"""

    @property
    def is_reading(self) -> bool:
        """Whether it has its place in both groups."""
        return all(reader.is_reading for reader in self._readers)

    @property
    def active(self) -> int:
        """Prompts in its hands."""
        return sum(reader.active for reader in self._readers)

    def start(self) -> None:
        """Pull, from when NATS is there."""
        self._queue.connection.on_lost.add(self._lost.set)
        self._task = supervise("prefill queue", self._listen)
        for reader in self._readers:
            reader.start()

    def drain(self) -> None:
        """Pull nothing more; what comes all the same goes to others at once."""
        self._draining = True
        for reader in self._readers:
            reader.drain()

    async def close(self) -> None:
        """What is in its hands goes to others at once. Idempotent."""
        self.drain()
        self._queue.connection.on_lost.discard(self._lost.set)
        task, self._task = self._task, None
        await stopped(task)
        for reader in self._readers:
            await reader.close()
        for burial in list(self._burials):
            await stopped(burial)

    async def kill(self) -> None:
        """Be gone as a process that crashed: nothing is settled."""
        self._is_killed = True
        await self.close()

    async def _listen(self) -> None:
        """Follow attempts that are over, and messages that were delivered for the last time."""
        names = self._names
        while True:
            self._lost.clear()
            try:
                link = await self._queue.connection.link()
                await link.subscribe_messages(names.cancel, self._on_cancel, _MOST, _MOST_BYTES)
                await link.subscribe_messages(
                    names.exhausted, self._on_exhausted, _MOST, _MOST_BYTES, "prefill-queue"
                )
            except (StoreError, NatsError, OSError):
                await asyncio.sleep(AGAIN_S)
                continue
            await self._lost.wait()

    def _on_cancel(self, message: Msg) -> None:
        words = read_words(message.data, Cancelled)
        task = None if words is None else self._running.get(words.attempt)
        if task is not None:
            task.cancel()

    def _on_exhausted(self, message: Msg) -> None:
        found = read_words(message.data, _Exhausted)
        if found is not None:
            task = asyncio.create_task(self._bury_exhausted(found.stream_seq))
            self._burials.add(task)
            task.add_done_callback(self._burials.discard)

    async def _bury_exhausted(self, sequence: int) -> None:
        """It would stay in the stream, and count, until it is too old."""
        try:
            body = await self._queue.message(sequence)
            if body is None:
                return
            text = f"{self._config.prefill_queue_max_deliver} engines did not do it"
            await self._bury(body, sequence, QueueMessageError(text, "exhausted"))
            await self._queue.delete(sequence)
        except StoreError as error:
            log.warning("an exhausted prompt stays in its queue", error=str(error))

    async def _handle(self, delivery: Delivery) -> None:
        if delivery.number > 1:
            self._metrics.on_redelivered()
        if self._draining:
            await delivery.nak()
            return
        try:
            request = read_request(delivery.body)
            if request.model != self._model:
                text = f"its model is {request.model!r}, this worker's {self._model!r}"
                raise QueueMessageError(text, "mismatch")
        except QueueMessageError as error:
            await self._bury(delivery.body, delivery.sequence, error)
            await delivery.term()
            return
        if (running := self._running.get(request.attempt)) is not None:
            await self._await(running, delivery, request)  # which settles it: we stood still
            return
        task = asyncio.create_task(self._serve(delivery, request), name="queued prefill")
        self._running[request.attempt] = task
        try:
            await self._await(task, delivery, request)
            if task.cancelled():  # its decode engine has given it up
                await delivery.ack()
            else:
                task.result()
        finally:
            del self._running[request.attempt]
            if not task.done():
                await stopped(task)
                if not self._is_killed:
                    await delivery.nak()

    async def _await(
        self, task: "asyncio.Task[None]", delivery: Delivery, request: RemotePrefillRequest
    ) -> None:
        """Return once it is done, and give signs of life until then."""
        while not task.done():
            await asyncio.wait([task], timeout=self._config.prefill_queue_ack_wait_s / 3)
            if not task.done():
                await delivery.in_progress()
                await self._report(request, "busy")

    async def _serve(self, delivery: Delivery, request: RemotePrefillRequest) -> None:
        """A prompt is computed while its decode engine is asked; one that was delivered before, the
        attempt of which may well be over, once that has answered."""
        asked = self._take(request, is_first=delivery.number == 1)
        taking = _begun(asked, "a queued prompt's grant")
        computing: asyncio.Task[None] | None = None
        grant = ""
        try:
            if delivery.number > 1:
                await asyncio.wait([taking])
            computing = _begun(self._compute(request, taking), "a queued prompt's blocks")
            target = await taking
            if target is not None:
                grant = target.grant.attempt
                await computing
                await self._ask(request, "landed", grant)
            await delivery.ack()
        except QueueMessageError as error:
            await self._bury(delivery.body, delivery.sequence, error, grant)
            await delivery.term()
        except _Again as error:
            log.info("prompt goes back to the queue", request=request.request_id, error=str(error))
            if delivery.number >= self._config.prefill_queue_max_deliver:
                exhausted = QueueMessageError(str(error), "exhausted")
                await self._bury(delivery.body, delivery.sequence, exhausted, grant)
                await delivery.term()
            else:
                await delivery.nak(AGAIN_S)
        finally:
            for task in (computing, taking):
                await stopped(task)

    async def _take(self, request: RemotePrefillRequest, *, is_first: bool) -> "_Target | None":
        """Where its blocks go; None if its attempt is over."""
        asked_at = asyncio.get_running_loop().time()
        reply = await self._ask(request, "take", is_first=is_first)
        if reply.s != "go" or reply.grant is None:
            return None
        metadata = [await self._stored(request.engine_id), reply.metadata]
        known = [each for each in metadata if each is not None]
        return _Target(reply.grant, asked_at + reply.left_s, known)

    async def _stored(self, engine_id: str) -> bytes | None:
        """What the store has of an engine. It is asked once: an id is that of one incarnation."""
        found = self._known.get(engine_id)
        if found is None and self._find is not None:
            with suppress(RouterError, TimeoutError):  # the store is away
                async with asyncio.timeout(_CHECK_S):
                    found = await self._find(engine_id)
        if found is not None:
            while len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[engine_id] = found
        return found

    async def _compute(
        self, request: RemotePrefillRequest, taking: "asyncio.Task[_Target | None]"
    ) -> None:
        """Return once the blocks are written, or its attempt is over."""
        if taking.done() and await taking is None:
            return
        for observe in self.on_begun:
            observe(request)
        try:
            async with self._computer.compute(request) as prompt:
                if prompt.hashes != request.hashes():
                    raise QueueMessageError("its blocks have other hashes here", "mismatch")
                target = await taking
                if target is None:
                    return
                peer = self._connect(prompt.transfer, request, target)
                first = len(request.computed_block_ids)
                ticket = prompt.transfer.write(
                    peer,
                    prompt.blocks[first:],
                    target.grant,
                    request.request_id,
                    deadline_s=max(0.0, target.ends_at - asyncio.get_running_loop().time()),
                )
                try:
                    await prompt.transfer.finished(ticket)
                finally:
                    await prompt.transfer.settled(ticket)
                    for written in self.on_written:
                        written(prompt.transfer, ticket)
        except TransferError as error:
            if error.reason != "revoked":  # the attempt is over, or another engine's
                raise _judged(error) from None
        except InvalidRequestError as error:
            raise QueueMessageError(str(error), "unserved") from None
        except (NoWorkersError, WorkerError) as error:
            if CORRUPT in str(error):
                raise QueueMessageError(str(error), "corrupt") from None
            raise _Again(str(error)) from None

    def _connect(
        self, transfer: Transfer[Any], request: RemotePrefillRequest, target: _Target
    ) -> Any:
        """The decode engine, by the first of its metadata that are of use."""
        failure: RouterError | None = None
        for metadata in target.metadata:
            try:
                peer = transfer.connect(metadata)
            except TransferError as error:
                failure = _judged(error)
            else:
                if peer.engine_id == request.engine_id:
                    return peer
                text = f"metadata of {peer.engine_id} in the place of {request.engine_id}'s"
                failure = QueueMessageError(text, "unknown")
            self._known.pop(request.engine_id, None)
        assert failure is not None
        raise failure

    async def _ask(
        self, request: RemotePrefillRequest, word: str, grant: str = "", is_first: bool = True
    ) -> Reply:
        """What its decode engine answers."""
        try:
            link = await self._queue.connection.link()
            body = await link.request(
                self._names.decode(request.engine_id), self._words(request, word, grant), {}, ASK_S
            )
        except NoRespondersError:
            text = f"engine {request.engine_id} does not listen"
            if word == "take" and not is_first:
                raise QueueMessageError(text, "unknown") from None
            raise _Again(text) from None  # it may be about to come back to NATS
        except (NatsError, StoreError, OSError, TimeoutError) as error:
            raise _Again(str(error) or "no answer of the decode engine") from None
        reply: Reply | None = read_words(body, Reply)
        if reply is None:
            raise _Again("an answer that is none")
        return reply

    async def _report(self, request: RemotePrefillRequest, word: str) -> None:
        await self._queue.send(
            self._names.decode(request.engine_id), self._words(request, word, "")
        )

    def _words(
        self, request: RemotePrefillRequest, word: str, grant: str, error: str = ""
    ) -> bytes:
        own = self._computer.transfer.engine_id
        return msgspec.json.encode(Ask(word, request.attempt, own, grant, error))

    async def _bury(
        self, body: bytes, sequence: int, error: QueueMessageError, grant: str = ""
    ) -> None:
        """Make it a dead letter, and let its decode engine know if it can be made out."""
        self._metrics.on_dead_letter(error.reason)
        log.warning("dead letter", stream=self._names.stream, reason=error.reason, error=str(error))
        try:
            await self._dead.add(body, f"{self._names.stream}:{sequence}", error.reason, str(error))
        except StoreError as failure:
            log.warning("a dead letter is lost", error=str(failure))
        found = read_words(body, _Sender)
        if found is not None:
            words = Ask("failed", found.attempt, self._computer.transfer.engine_id, grant,
                        error.reason)  # fmt: skip
            await self._queue.send(self._names.decode(found.engine_id), msgspec.json.encode(words))


def _begun(work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
    """A task whose failure may be looked at by none."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def _judged(error: TransferError) -> RouterError:
    """What a failed transfer means for its message."""
    if error.reason in ("version", "mismatch"):
        return QueueMessageError(str(error), "mismatch")
    if error.reason in ("stale", "dead", "unknown"):
        return QueueMessageError(str(error), "unknown")
    return _Again(str(error))


class _Exhausted(msgspec.Struct):
    stream_seq: int


class _Sender(msgspec.Struct):
    attempt: str
    engine_id: str
