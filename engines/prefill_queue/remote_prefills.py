"""RemotePrefills: a decode engine's prompts in the queue, until their blocks have landed.

One attempt of a prompt at a time has a grant for its blocks. Each prefill engine that takes the
attempt up gets a grant of its own, and the one before ends: what an engine writes, or says, that
was thought dead counts for nothing. If a grant cannot be ended, its blocks are quarantined and the
attempt with them. However an attempt ends, the engine computes the prompt itself at once.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from structlog import get_logger

from ...base.backoff import Backoff
from ...base.errors import RouterError
from ...process.supervised import stopped, supervise
from ...runtime.kv_stores import StoreError
from ...runtime.work_queues import QueueFullError, QueueRefusedError, WorkQueue
from ..transfer import Grant, Notification, Revocation, Transfer
from .config import PrefillQueueConfig
from .messages import (
    VERSION,
    Ask,
    Cancelled,
    KvLayout,
    QueueMessageError,
    RemotePrefillRequest,
    Reply,
    encode_request,
    hex_hashes,
    packed_tokens,
    read_words,
)
from .metrics import QueueMetrics
from .names import QueueNames

PUBLISH_S = 1.0
"""A server that takes longer for a message counts as away."""
TOKENS = "Dyn-Tokens"
"""Header of a message: tokens to be computed."""
_LOOK_S = 0.5
"""How often it is looked whether a writer that cannot be stopped has died."""
_LANDING_S = 1.0
_MOST_ASKED, _MOST_BYTES = 4096, 16 << 20

log = get_logger(__name__)


class RemotePrefillError(RouterError):
    """The blocks did not come. `reason` is a word for metrics: away (NATS, or its queue), full,
    deadline, large (for a message), failed (its prefill engine says so), quarantined, aborted."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class QueuedPrompt:
    """A prompt whose blocks a decode engine has allocated."""

    request_id: str
    token_ids: npt.NDArray[np.uint32]
    block_size: int
    hashes: list[int]
    """sequence hashes of its blocks, a partial one last"""
    computed: list[int]
    """blocks that have the first of them"""
    blocks: list[int]
    """those that are to come. Emptied where they had to be quarantined: the end of the quarantine
    frees them, and they are the prompt's no more"""
    lora_name: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    worker_id: int | None = None
    """the prefill worker that is to have it, if one was chosen"""

    @property
    def uncached_tokens(self) -> int:
        return len(self.token_ids) - len(self.computed) * self.block_size


class _Attempt:
    def __init__(self, prompt: QueuedPrompt, ends_at: float) -> None:
        self.name = token_hex(16)
        self.prompt, self.ends_at = prompt, ends_at
        self.grant: Grant | None = None
        self.takes = 0
        self.sequence: int | None = None
        self.taking = asyncio.Lock()
        self.last_sign = float("-inf")
        self.is_doubtful = False
        """NATS was lost since it was taken: its message may have gone"""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def land(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def fail(self, text: str, reason: str) -> None:
        if not self.over.done():
            self.over.set_exception(RemotePrefillError(text, reason))
            self.over.exception()  # its waiter may have gone


class RemotePrefills:
    """Of one rank of a decode engine, from `start` to `close`. The transfer stays its owner's, who
    passes on what it is notified of."""

    def __init__(
        self,
        queue: WorkQueue,
        names: QueueNames,
        config: PrefillQueueConfig,
        transfer: Transfer[Any],
        metrics: QueueMetrics,
        *,
        model: str,
        pool: str = "",
        find_metadata: Callable[[str], Any] | None = None,
    ) -> None:
        """`find_metadata`: awaited for the metadata of a writer that cannot be stopped, to see
        whether it lives."""
        self._queue, self._names, self._config = queue, names, config
        self._transfer, self._metrics, self._find = transfer, metrics, find_metadata
        self._model, self._pool = model, pool
        self._attempts: dict[str, _Attempt] = {}
        self._quarantined: dict[str, asyncio.Event] = {}
        """by attempt of a grant: set when its writer has ended"""
        self._ready = False
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._refusal = ""
        metrics.now = time.monotonic

    @property
    def is_ready(self) -> bool:
        """Whether prompts can be queued now."""
        return self._ready

    def start(self) -> None:
        """Be ready from when NATS is there."""
        self._queue.connection.on_lost.add(self._on_lost)
        self._task = supervise("remote prefills", self._keep)

    async def close(self) -> None:
        """What is queued fails. Idempotent."""
        self._queue.connection.on_lost.discard(self._on_lost)
        task, self._task = self._task, None
        await stopped(task)
        self._ready = False
        for attempt in list(self._attempts.values()):
            attempt.fail("the engine stops", "aborted")
        if self._beside:
            await asyncio.wait(self._beside, timeout=PUBLISH_S)
        for each in list(self._beside):
            await stopped(each)

    async def queued(self) -> int:
        """Prompts in the queue, being computed among them. StoreError."""
        if not self._ready:
            raise StoreError("the queue is away")
        return await self._queue.messages()

    async def prefill(
        self,
        prompt: QueuedPrompt,
        on_failed: Callable[[RemotePrefillError], None] = lambda error: None,
    ) -> None:
        """Return once all blocks have landed.

        RemotePrefillError if they do not come. `on_failed` is called with it before: this may take
        until a writer has ended that cannot be stopped, and nothing has to wait for that.
        """
        if not prompt.blocks:
            return
        now = asyncio.get_running_loop().time()
        attempt = _Attempt(prompt, now + self._config.prefill_queue_timeout_s)
        self._attempts[attempt.name] = attempt
        self._metrics.on_queued(attempt.name, prompt.uncached_tokens, time.monotonic())
        outcome = "aborted"
        try:
            async with asyncio.timeout_at(attempt.ends_at):
                await self._put(attempt, prompt.worker_id)
                await self._landed(attempt)
            outcome = "landed"
        except TimeoutError:
            outcome = "deadline"
            text = f"no blocks within {self._config.prefill_queue_timeout_s:g} s"
            failure = RemotePrefillError(text, outcome)
            on_failed(failure)
            raise failure from None
        except RemotePrefillError as error:
            outcome = error.reason
            on_failed(error)
            raise
        finally:
            del self._attempts[attempt.name]
            self._metrics.on_over(attempt.name, outcome)
            if outcome != "landed":
                await self._give_up(attempt)

    def on_notification(self, notification: Notification) -> None:
        """A prefill engine's word on blocks of ours; of an attempt that has ended: nothing."""
        if notification.status == "started":
            return
        name = notification.attempt
        grants = self._transfer.grants
        is_done = notification.status == "done"
        if not (grants.land(name) if is_done else grants.fail(name)):
            return
        if (drained := self._quarantined.get(name)) is not None:
            drained.set()
        attempt = self._attempts.get(name.rpartition(".")[0])
        if attempt is None or attempt.grant is None or attempt.grant.attempt != name:
            return
        if is_done:
            attempt.land()
        else:
            attempt.fail(f"its prefill engine: {notification.error}", "failed")

    async def _keep(self) -> None:
        backoff = Backoff(0.05, 1.0)
        subject = self._names.decode(self._transfer.engine_id)
        while True:
            self._lost.clear()
            try:
                await self._queue.ensure()
                link = await self._queue.connection.link()
                await link.subscribe_messages(subject, self._on_ask, _MOST_ASKED, _MOST_BYTES)
                await link.flush()
            except (StoreError, NatsError, OSError) as error:
                if isinstance(error, QueueRefusedError) and str(error) != self._refusal:
                    log.error("prompts cannot be queued", error=str(error))
                self._refusal = str(error)
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            self._refusal = ""
            self._ready = True
            await self._lost.wait()

    def _on_lost(self) -> None:
        """What has no prefill engine yet may be gone with NATS; what has one can still land."""
        self._ready = False
        self._lost.set()
        for attempt in self._attempts.values():
            attempt.is_doubtful = True
            if attempt.grant is None:
                attempt.fail("NATS was lost", "away")

    async def _put(self, attempt: _Attempt, worker_id: int | None) -> None:
        """Queue it, for one worker or for any."""
        if not self._ready:
            raise RemotePrefillError(self._refusal or "NATS is away", "away")
        names = self._names
        subject = names.queue if worker_id is None else names.worker(worker_id)
        number = "direct" if worker_id is not None else "any"
        try:
            body = encode_request(self._message(attempt))
        except QueueMessageError as error:
            raise RemotePrefillError(str(error), "large") from None
        headers = {TOKENS: str(attempt.prompt.uncached_tokens)}
        try:
            async with asyncio.timeout(PUBLISH_S):
                attempt.sequence = await self._queue.publish(
                    subject,
                    body,
                    f"{attempt.name}:{number}",
                    headers,
                    lasts_s=attempt.ends_at - asyncio.get_running_loop().time(),
                )
        except QueueFullError as error:
            raise RemotePrefillError(str(error), "full") from None
        except (StoreError, TimeoutError) as error:
            reason = "away" if getattr(error, "transient", True) else "large"
            raise RemotePrefillError(str(error) or "NATS does not answer", reason) from None

    async def _landed(self, attempt: _Attempt) -> None:
        """Wait for it. What was pushed to one worker and gets no sign of it goes to all; what may
        have gone with NATS is waited for as long as there are signs."""
        loop, wait_s = asyncio.get_running_loop(), self._config.prefill_queue_ack_wait_s
        attempt.last_sign = loop.time()
        is_pushed = attempt.prompt.worker_id is not None
        while not attempt.over.done():
            left_s = attempt.last_sign + wait_s - loop.time()
            await asyncio.wait([attempt.over], timeout=left_s if left_s > 0 else wait_s)
            if attempt.over.done() or loop.time() - attempt.last_sign < wait_s:
                continue
            if is_pushed:
                is_pushed = False
                await self._take_out(attempt)
                await self._put(attempt, None)
            elif attempt.is_doubtful:
                attempt.fail("NATS was lost, and its prefill engine gives no sign", "away")
        await attempt.over

    def _message(self, attempt: _Attempt) -> RemotePrefillRequest:
        prompt, layout = attempt.prompt, self._transfer.arena.layout
        left_s = attempt.ends_at - asyncio.get_running_loop().time()
        return RemotePrefillRequest(
            v=VERSION,
            request_id=prompt.request_id,
            attempt=attempt.name,
            engine_id=self._transfer.engine_id,
            model=self._model,
            pool=self._pool,
            block_size=prompt.block_size,
            block_ids=(*prompt.computed, *prompt.blocks),
            computed_block_ids=tuple(prompt.computed),
            block_hashes=hex_hashes(prompt.hashes),
            kv_layout=KvLayout(layout.tp, layout.layers, layout.bytes_per_block),
            deadline_ms=int((time.time() + left_s) * 1e3),
            lora_name=prompt.lora_name,
            cache_salt=prompt.cache_salt,
            priority=prompt.priority,
            **packed_tokens(prompt.token_ids),
        )

    def _on_ask(self, message: Msg) -> None:
        ask = read_words(message.data, Ask)
        if ask is None:
            return
        attempt = self._attempts.get(ask.attempt)
        if attempt is not None:
            attempt.last_sign = asyncio.get_running_loop().time()
        if ask.k == "failed" and attempt is not None:
            self.on_notification(Notification(ask.grant, "", 0, "failed", ask.error))
            if not ask.grant:  # it is out of the queue
                attempt.fail(f"its prefill engine: {ask.error}", "failed")
        elif ask.k in ("take", "landed"):
            self._run(self._answer(ask, attempt, message.reply))

    async def _answer(self, ask: Ask, attempt: _Attempt | None, reply: str) -> None:
        answer: Reply | None = Reply("gone")
        if attempt is not None and ask.k == "landed":
            await asyncio.wait([attempt.over], timeout=_LANDING_S)
            answer = Reply("landed") if attempt.over.done() else None  # it is asked again
        elif attempt is not None:
            async with attempt.taking:
                answer = await self._take(attempt, ask.engine_id)
        if answer is not None:
            await self._queue.send(reply, msgspec.json.encode(answer))

    async def _take(self, attempt: _Attempt, writer: str) -> Reply:
        transfer = self._transfer
        if attempt.grant is not None and not attempt.over.done():
            # Its first taker was thought dead. What that one writes from here on is refused.
            if await transfer.revoke(attempt.grant) is Revocation.QUARANTINED:
                attempt.prompt.blocks.clear()
                attempt.fail("an engine that may write still was thought dead", "quarantined")
        if attempt.over.done() or attempt.name not in self._attempts:
            return Reply("gone")
        attempt.takes += 1
        attempt.grant = transfer.grants.grant(
            attempt.prompt.blocks,
            f"{attempt.name}.{attempt.takes}",
            deadline=attempt.ends_at,
            writer=writer,
        )
        left_s = attempt.ends_at - asyncio.get_running_loop().time()
        return Reply("go", attempt.grant, left_s, transfer.export())

    async def _give_up(self, attempt: _Attempt) -> None:
        """Return once nothing is written into its blocks any more."""
        self._run(self._withdraw(attempt))
        async with attempt.taking:
            grant = attempt.grant
        if grant is None:
            return
        drained = self._quarantined[grant.attempt] = asyncio.Event()
        try:
            is_open = self._transfer.grants.grant_of(grant.attempt) is not None
            if is_open and await self._transfer.revoke(grant) is Revocation.QUARANTINED:
                attempt.prompt.blocks.clear()
                await self._drain(grant, drained)
        finally:
            del self._quarantined[grant.attempt]

    async def _drain(self, grant: Grant, drained: asyncio.Event) -> None:
        """Until the writer of quarantined blocks has ended, or is dead and its last bytes came."""
        grants, loop = self._transfer.grants, asyncio.get_running_loop()
        writer = grants.writer_of(grant.attempt)
        while grants.grant_of(grant.attempt) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await drained.wait()
            if writer is not None and await self._is_dead(writer):
                grants.on_writer_dead(writer, loop.time())
            grants.drain(loop.time())

    async def _is_dead(self, engine_id: str) -> bool:
        try:
            metadata = None if self._find is None else await self._find(engine_id)
            return metadata is not None and self._transfer.is_dead(self._transfer.connect(metadata))
        except RouterError as error:
            return getattr(error, "reason", "") == "dead"

    async def _withdraw(self, attempt: _Attempt) -> None:
        """Keep the request from being computed for nothing, as far as that goes."""
        words = Cancelled(attempt.prompt.request_id, attempt.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(PUBLISH_S):
                if self._ready:
                    await self._queue.send(self._names.cancel, msgspec.json.encode(words))
                    await self._take_out(attempt)

    async def _take_out(self, attempt: _Attempt) -> None:
        sequence, attempt.sequence = attempt.sequence, None
        if sequence is not None:
            with suppress(StoreError):
                await self._queue.delete(sequence)

    def _run(self, work: Any) -> None:
        task = asyncio.create_task(work, name="remote prefills beside")
        self._beside.add(task)
        task.add_done_callback(partial(_note, self._beside))


def _note(tasks: "set[asyncio.Task[None]]", task: "asyncio.Task[None]") -> None:
    tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a word about a prompt was not answered", error=str(error))
