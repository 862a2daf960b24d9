"""RankTransfers: how the prompts of one rank of a mock engine reach others, and others' reach it.

A prefill engine keeps a prompt's blocks for a lease, in which the decode engine reads them. The
decode engine notifies it when it has, or has given up; a reader that never comes costs the lease.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from secrets import token_hex
from typing import Any

from ...base.errors import RouterError
from ...workers.handoffs import RemotePrefillHint
from ..prefill_queue import QueuedPrompt, RemotePrefillError, RemotePrefills
from ..transfer import (
    Notification,
    Offer,
    Ticket,
    Transfer,
    TransferConfig,
    TransferError,
    TransferMetrics,
)
from .contents import CacheContents
from .live import IncomingPrompt, LiveEngine, NotBroughtError, not_brought
from .sequence import Sequence

FindMetadata = Callable[[str], Awaitable[bytes | None]]
"""The metadata of an engine of that id, if there is one. StoreError."""


class BlockMoves:
    """How the blocks of a mock engine are moved: those of all its ranks."""

    def __init__(
        self,
        config: TransferConfig,
        metrics: TransferMetrics,
        *,
        hands_over: bool = False,
        find_metadata: FindMetadata | None = None,
        seconds_of: Callable[[int], float] = lambda size: 0.0,
    ) -> None:
        """`find_metadata`: where engines' metadata are found; None: in the handoffs alone.
        `seconds_of`: see TransferConfig.open."""
        self.ranks: list[RankTransfers] = []
        self._config, self.metrics, self._hands_over = config, metrics, hands_over
        self._find, self._seconds_of = find_metadata, seconds_of

    def open(self, ranks: Iterable[LiveEngine]) -> None:
        """Before they have requests. ConfigError if the way cannot be used here."""
        for live in ranks:
            blocks = live.engine.config.num_gpu_blocks
            transfer = self._config.open(blocks, self._seconds_of)
            live.engine.hands_over = self._hands_over
            self.ranks.append(
                RankTransfers(
                    transfer,
                    live,
                    self._find or _find_none,
                    self.metrics,
                    lease_s=self._config.transfer_lease_s,
                    deadline_s=self._config.transfer_timeout_s,
                )
            )

    def metadata(self) -> dict[str, bytes]:
        """Of each rank, by its engine id."""
        return {each.transfer.engine_id: each.transfer.export() for each in self.ranks}

    def unstored_metadata(self, engine_id: str) -> bytes | None:
        """What goes along with an offer of that engine; None: readers find it in the store."""
        return None if self._find is not None else self.metadata()[engine_id]

    async def close(self) -> None:
        """After the engine has stopped. Idempotent."""
        for each in self.ranks:
            await each.close()


async def _find_none(engine_id: str) -> bytes | None:
    return None


class RankTransfers:
    """See PromptSource. From its making until `close`; its transfer is its own."""

    def __init__(
        self,
        transfer: Transfer[Any],
        live: LiveEngine,
        find_metadata: FindMetadata,
        metrics: TransferMetrics,
        *,
        lease_s: float,
        deadline_s: float,
    ) -> None:
        """The engine has had no request. `lease_s`: how long a prompt is kept for its reader;
        `deadline_s`: how long its blocks may take."""
        self.transfer = transfer
        self._own = f"<{transfer.engine_id}"
        """ends the names of attempts that are reads of ours"""
        self.expired = 0
        """leases in which no reader came"""
        self._live, self._find, self._metrics = live, find_metadata, metrics
        self._lease_s, self._deadline_s = lease_s, deadline_s
        self._leases: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        """by attempt: the number of the prompt that is kept"""
        self.remote: RemotePrefills | None = None
        """of a decode engine that takes part in a prefill queue"""
        self.contents = live.engine.contents = CacheContents(transfer, metrics)
        live.source = self
        transfer.listen(self.on_notification)
        metrics.holders.append(self.held)

    def held(self) -> dict[str, int]:
        """Blocks that are held for others, by HELD."""
        grants = self.transfer.grants
        kept = sum(
            len(self._live.engine.kept_blocks(number)) for number, _ in self._leases.values()
        )
        return {
            "granted": grants.granted_blocks,
            "kept": kept,
            "quarantined": grants.quarantined_blocks,
        }

    def on_kept(self, number: int, sequence: Sequence) -> None:
        blocks = self._live.engine.kept_blocks(number)
        grants, attempt = self.transfer.grants, token_hex(8)
        epochs = grants.epochs_of(blocks)
        sequence.offer = Offer(self.transfer.engine_id, attempt, tuple(blocks), epochs)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._lease_s, self._expire, attempt)
        self._leases[attempt] = (number, timer)
        self.transfer.expect(1)

    def hold(self, attempt: str) -> None:
        """Keep the prompt that is kept for it until `end_lease`, however long that takes."""
        number, timer = self._leases[attempt]
        timer.cancel()

    def end_lease(self, attempt: str) -> bool:
        """The prompt that was kept for it is kept no longer. False if none is."""
        number, timer = self._leases.pop(attempt, (-1, None))
        if timer is None:
            return False
        timer.cancel()
        self.transfer.expect(-1)
        return self._live.let_go(number)

    def on_notification(self, engine_id: str, notification: Notification) -> None:
        """A reader has ended, or a prefill engine of the queue that writes into our blocks. None of
        them knows when we have read what we read."""
        if notification.attempt.endswith(self._own):
            return
        if notification.status in ("done", "failed") and not self.end_lease(notification.attempt):
            if self.remote is not None:
                self.remote.on_notification(notification)

    async def bring(self, incoming: IncomingPrompt) -> None:
        if incoming.sequence.hint is not None:
            await self._bring_queued(incoming, incoming.sequence.hint)
            return
        offer = incoming.sequence.offer
        if offer is None:
            raise TransferError("the prompt comes without blocks: its engine moves none", "unknown")
        if len(offer.blocks) != len(incoming.hashes):
            text = f"{len(offer.blocks)} blocks are offered, the prompt has {len(incoming.hashes)}"
            raise TransferError(text, "mismatch")
        transfer, count = self.transfer, len(incoming.blocks)
        peer = await self._connect(offer.engine_id, incoming.sequence.metadata)
        if not count:
            self._report(peer, Notification(offer.attempt))
            return
        # The reader is a writer of its own blocks: no other may have them until it has ended.
        own = offer.attempt + self._own
        grants = transfer.grants
        grants.grant(incoming.blocks, own, deadline=0.0, writer=transfer.engine_id)
        ticket = None
        try:
            positions = range(incoming.first, len(incoming.hashes))
            into = list(incoming.blocks)  # its own, which lasts as long as it moves
            ticket = transfer.read(peer, offer, into, positions, deadline_s=self._deadline_s)
            await transfer.finished(ticket)
            grants.land(own)
            self._report(peer, Notification(offer.attempt, blocks=count))
        except BaseException as error:
            reason = error.reason if isinstance(error, TransferError) else "aborted"
            self._report(peer, Notification(offer.attempt, status="failed", error=reason))
            await self._settle(incoming, own, ticket, error)
            raise
        finally:
            if ticket is not None:
                self._metrics.observe(transfer.kind, "read", ticket)

    async def _bring_queued(self, incoming: IncomingPrompt, hint: RemotePrefillHint) -> None:
        """Have a prefill engine of the queue compute the prompt, and write its blocks."""
        request, engine = incoming.sequence.request, self._live.engine
        if self.remote is None:
            raise RemotePrefillError("the engine is in no queue", "away")
        prompt = QueuedPrompt(
            request.request_id,
            request.token_ids,
            engine.config.block_size,
            incoming.hashes,
            self.contents.blocks_of(incoming.hashes[: incoming.first]),
            incoming.blocks,
            lora_name=request.lora_name,
            cache_salt=request.cache_namespace,
            worker_id=hint.worker_id,
        )

        def failed(error: RemotePrefillError) -> None:
            self._live.give_up(request.request_id, NotBroughtError(str(error)))

        self.transfer.expect(1)
        try:
            await self.remote.prefill(prompt, failed)
        finally:
            self.transfer.expect(-1)

    async def _settle(
        self, incoming: IncomingPrompt, attempt: str, ticket: Ticket | None, error: BaseException
    ) -> None:
        """Return once nothing is written into the blocks of an attempt that was given up."""
        grants = self.transfer.grants
        if ticket is not None and ticket.is_moving:
            grants.quarantine(attempt)
            incoming.blocks.clear()  # freed below, another prompt may have them before `bring` ends
            # Its request ends now: an abort of it would end the wait, and the blocks never be free.
            self._live.give_up(incoming.sequence.request.request_id, not_brought(error))
            await self.transfer.settled(ticket)
        grants.fail(attempt)

    async def _connect(self, engine_id: str, metadata: bytes | None) -> Any:
        if metadata is None:
            try:
                metadata = await self._find(engine_id)
            except RouterError as error:
                text = f"no metadata of engine {engine_id}: {error}"
                raise TransferError(text, "unavailable") from None
            if metadata is None:
                text = f"there is no metadata of engine {engine_id}: it is unknown, or has ended"
                raise TransferError(text, "unknown")
        peer = self.transfer.connect(metadata)
        if peer.engine_id != engine_id:
            self.transfer.disconnect(peer)
            text = f"metadata of engine {peer.engine_id} in the place of {engine_id}'s"
            raise TransferError(text, "stale")
        return peer

    def _report(self, peer: Any, notification: Notification) -> None:
        with suppress(TransferError):  # its lease ends by itself
            self.transfer.notify(peer, notification)

    def _expire(self, attempt: str) -> None:
        self.expired += self.end_lease(attempt)

    async def close(self) -> None:
        """After the engine has stopped. Idempotent."""
        for attempt in list(self._leases):
            self.end_lease(attempt)
        await self.transfer.close()
        if self.held in self._metrics.holders:
            self._metrics.holders.remove(self.held)
