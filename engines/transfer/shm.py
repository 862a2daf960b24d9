"""ShmTransfer: blocks of engines of one host, in files that all of them map.

A grant can truly be revoked: its writer has the grant's byte locked while it copies, and looks at
the blocks' epochs before and after. The owner changes the epochs, then takes the lock: from there
on no write of that grant begins, and none goes on. Only a writer that stands still in the middle of
a copy keeps the lock: then the blocks are quarantined.
"""

import asyncio
import fcntl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic

from .arena import ArenaLayout, BlockArena, copy_blocks
from .doorbell import BELL, Doorbell
from .grants import BlockGrants, Grant
from .interface import Notification, Offer, Revocation
from .metadata import EngineMetadata, read_metadata
from .shared_file import SharedFile, set_lock, sweep
from .tickets import Ticket, TransferError, finished, settled

INLINE_BYTES = 2 << 20
"""Copied within the call; more is copied by a thread. Some 0.3 ms."""
CHUNK_BYTES = 1 << 20
"""Copied between two looks at deadline and epochs."""
REVOKE_S = 0.05
"""How long a revocation waits for a writer that is in the middle of a chunk."""
_POLL_S = 0.0005

Step = Callable[[int, int], None]
"""Copies the blocks from one position to another one of a transfer. TransferError."""


class ShmPeer:
    """See Peer."""

    def __init__(self, metadata: EngineMetadata, file: SharedFile) -> None:
        self.engine_id, self.layout = metadata.engine_id, metadata.layout
        self.blocks, self.file = metadata.blocks, file


class ShmTransfer:
    """See Transfer."""

    kind = "shm"

    def __init__(self, engine_id: str, layout: ArenaLayout, blocks: int, *, folder: Path) -> None:
        """ConfigError if the folder has no room for the blocks."""
        self.engine_id = engine_id
        sweep(folder)
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._file = SharedFile.create(folder, engine_id, layout, blocks)
        try:
            self._bell = Doorbell(folder, engine_id)
        except BaseException:
            self._file.close(unlink=True)
            raise
        self.grants = BlockGrants(blocks, self._file.epochs)
        self._peers: dict[str, ShmPeer] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._running: dict[Ticket, ShmPeer] = {}
        self._closed = False

    finished = staticmethod(finished)
    settled = staticmethod(settled)

    @property
    def arena(self) -> BlockArena:
        return self._file.arena

    def export(self) -> bytes:
        layout, blocks = self.arena.layout, self._file.blocks
        return EngineMetadata(self.engine_id, self.kind, layout, blocks).encode()

    def connect(self, metadata: bytes) -> ShmPeer:
        read = read_metadata(metadata, self.kind, self.arena.layout)
        known = self._peers.get(read.engine_id)
        if known is not None:
            if not self.is_dead(known):
                return known
            self.disconnect(known)
        file = SharedFile.open(self._folder, read.engine_id, read.layout, read.blocks)
        peer = self._peers[read.engine_id] = ShmPeer(read, file)
        return peer

    def disconnect(self, peer: ShmPeer) -> None:
        if self._peers.get(peer.engine_id) is peer:
            del self._peers[peer.engine_id]
        if peer not in self._running.values():
            peer.file.close()

    def write(
        self, peer: ShmPeer, blocks: Sequence[int], grant: Grant, request_id: str, *,
        deadline_s: float,
    ) -> Ticket:  # fmt: skip
        _check_fit(peer, blocks, grant.blocks, self.arena)

        def copy(begin: int, end: int) -> None:
            file, lock = peer.file, grant.epochs[0]
            there, epochs = grant.blocks[begin:end], grant.epochs[begin:end]
            if not set_lock(file.file, lock, fcntl.F_WRLCK):
                raise _revoked(grant)  # its owner takes the right back
            try:
                if not file.epochs_are(there, epochs):
                    raise _revoked(grant)
                copy_blocks(self.arena, blocks[begin:end], file.arena, there)
                if not file.epochs_are(there, epochs):
                    raise _revoked(grant)
            finally:
                set_lock(file.file, lock, fcntl.F_UNLCK)

        def report(error: TransferError | None) -> None:
            status, why = ("done", "") if error is None else ("failed", error.reason)
            self.notify(peer, Notification(grant.attempt, request_id, len(blocks), status, why))

        return self._begin(peer, len(blocks), copy, deadline_s, report)

    def read(
        self, peer: ShmPeer, offer: Offer, blocks: Sequence[int], positions: Sequence[int], *,
        deadline_s: float,
    ) -> Ticket:  # fmt: skip
        if max(positions, default=-1) >= len(offer.blocks):
            raise TransferError(f"the offer has {len(offer.blocks)} blocks", "mismatch")
        theirs = [offer.blocks[each] for each in positions]
        epochs = [offer.epochs[each] for each in positions]
        _check_fit(peer, blocks, theirs, self.arena)

        def copy(begin: int, end: int) -> None:
            file = peer.file
            there = theirs[begin:end]
            for _ in range(2):  # before: is it the block; after: was it all the while
                if not file.epochs_are(there, epochs[begin:end]):
                    text = f"engine {peer.engine_id} has other contents in these blocks by now"
                    raise TransferError(text, "stale")
                if _ == 0:
                    copy_blocks(file.arena, there, self.arena, blocks[begin:end])

        return self._begin(peer, len(blocks), copy, deadline_s, lambda error: None)

    def notify(self, peer: ShmPeer, notification: Notification) -> None:
        self._bell.ring(self._folder / f"{peer.engine_id}{BELL}", notification)

    def listen(self, on_notification: Callable[[str, Notification], None]) -> None:
        self._bell.listen(on_notification)

    def expect(self, more: int) -> None:
        """Nothing is polled."""

    def is_dead(self, peer: ShmPeer) -> bool:
        return peer.file.file < 0 or peer.file.owner_is_dead

    async def revoke(self, grant: Grant) -> Revocation:
        if self.grants.grant_of(grant.attempt) is None:
            return Revocation.UNKNOWN
        self.grants.withdraw(grant.attempt)
        ends_at = monotonic() + REVOKE_S
        while not self._take_back(grant):
            if monotonic() >= ends_at:
                if not self.grants.quarantine(grant.attempt):
                    return Revocation.UNKNOWN  # its writer ended meanwhile: the blocks are ours
                return Revocation.QUARANTINED
            await asyncio.sleep(_POLL_S)
        return Revocation.REVOKED if self.grants.fail(grant.attempt) else Revocation.UNKNOWN

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            await self._loop.run_in_executor(None, self._thread.shutdown)
            await asyncio.sleep(0)  # what it reported
        for peer in list(self._peers.values()):
            self.disconnect(peer)
        self._bell.close()
        self.grants.epochs = self.grants.epochs.copy()  # the file is unmapped
        self._file.close(unlink=True)

    def _take_back(self, grant: Grant) -> bool:
        """Whether no writer is in the middle of a copy for it."""
        lock = grant.epochs[0]
        # Another open description than the writers' is needed, and the file's own is one.
        if not set_lock(self._file.file, lock, fcntl.F_WRLCK):
            return False
        set_lock(self._file.file, lock, fcntl.F_UNLCK)
        return True

    def _begin(
        self,
        peer: ShmPeer,
        blocks: int,
        copy: Step,
        deadline_s: float,
        on_end: Callable[[TransferError | None], None],
    ) -> Ticket:
        size = blocks * self.arena.layout.bytes_per_block
        ticket = Ticket(size)
        each = max(1, CHUNK_BYTES // self.arena.layout.bytes_per_block)
        chunks = [(begin, min(begin + each, blocks)) for begin in range(0, blocks, each)]
        move = partial(self._move, peer, chunks, copy, monotonic() + deadline_s)
        if size <= INLINE_BYTES:
            _end(ticket, move(), on_end)
            return ticket
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="block transfer")
        self._running[ticket] = peer

        def over(error: TransferError | None) -> None:
            del self._running[ticket]
            _end(ticket, error, on_end)
            if self._peers.get(peer.engine_id) is not peer and peer not in self._running.values():
                peer.file.close()  # it was disconnected meanwhile

        self._thread.submit(lambda: self._loop.call_soon_threadsafe(over, move()))
        return ticket

    def _move(
        self, peer: ShmPeer, chunks: list[tuple[int, int]], copy: Step, ends_at: float
    ) -> TransferError | None:
        """Copy chunk after chunk; why not all of them."""
        try:
            for begin, end in chunks:
                if self._closed:
                    return TransferError("the engine is closed", "unavailable")
                if monotonic() >= ends_at:
                    return TransferError("its deadline passed", "timeout")
                if self.is_dead(peer):
                    return TransferError(f"engine {peer.engine_id} is gone", "dead")
                copy(begin, end)
        except Exception as error:
            return _failure("the copy", error)
        return None


def _end(
    ticket: Ticket,
    error: TransferError | None,
    on_end: Callable[[TransferError | None], None],
) -> None:
    try:
        on_end(error)
    except Exception as unsent:
        error = error or _failure("the notification", unsent)
    ticket.end(error)


def _failure(what: str, error: Exception) -> TransferError:
    """Whatever it is: a ticket that never ended would hold its request."""
    if isinstance(error, TransferError):
        return error
    return TransferError(f"{what} failed: {error!r:.200}", "internal")


def _check_fit(
    peer: ShmPeer, ours: Sequence[int], theirs: Sequence[int], arena: BlockArena
) -> None:
    if len(ours) != len(theirs):
        raise TransferError(f"{len(ours)} blocks here, {len(theirs)} there", "mismatch")
    for blocks, most, whose in ((ours, arena.blocks, "this engine"), (theirs, peer.blocks, "it")):
        if blocks and not 0 <= min(blocks) <= max(blocks) < most:
            raise TransferError(f"{whose} has {most} blocks, and not {max(blocks)}", "mismatch")


def _revoked(grant: Grant) -> TransferError:
    return TransferError(f"attempt {grant.attempt} may not write any more", "revoked")
