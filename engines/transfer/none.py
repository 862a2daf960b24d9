"""NoTransfer: the steps of a transfer without its bytes: counted, and timed as asked."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from .arena import ArenaLayout, BlockArena
from .doorbell import BELL, Doorbell, is_listening
from .grants import BlockGrants, Grant
from .interface import Notification, Offer, Revocation
from .metadata import EngineMetadata, read_metadata
from .shared_file import sweep
from .tickets import Ticket, TransferError, finished, settled


class NonePeer:
    """See Peer."""

    def __init__(self, metadata: EngineMetadata) -> None:
        self.engine_id, self.layout = metadata.engine_id, metadata.layout
        self.blocks = metadata.blocks


class NoTransfer:
    """See Transfer. Grants and notifications are real; a grant can always be revoked, as nothing
    is ever written. The arena is none that can be read: it has no blocks."""

    kind = "none"

    def __init__(
        self,
        engine_id: str,
        layout: ArenaLayout,
        blocks: int,
        *,
        folder: Path,
        seconds_of: Callable[[int], float] = lambda size: 0.0,
    ) -> None:
        """`seconds_of`: how long that many bytes take. ConfigError if there can be no socket in the
        folder."""
        self.engine_id = engine_id
        self.arena = BlockArena(layout, 0)
        self.grants = BlockGrants(blocks)
        sweep(folder)
        self._folder, self._seconds_of, self._blocks = folder, seconds_of, blocks
        self._bell = Doorbell(folder, engine_id)
        self._timers: dict[Ticket, asyncio.TimerHandle] = {}

    finished = staticmethod(finished)
    settled = staticmethod(settled)

    def export(self) -> bytes:
        return EngineMetadata(self.engine_id, self.kind, self.arena.layout, self._blocks).encode()

    def connect(self, metadata: bytes) -> NonePeer:
        peer = NonePeer(read_metadata(metadata, self.kind, self.arena.layout))
        if self.is_dead(peer):
            raise TransferError(f"engine {peer.engine_id} is gone", "dead")
        return peer

    def disconnect(self, peer: NonePeer) -> None:
        """Nothing is kept of it."""

    def write(
        self, peer: NonePeer, blocks: Sequence[int], grant: Grant, request_id: str, *,
        deadline_s: float,
    ) -> Ticket:  # fmt: skip
        if len(blocks) != len(grant.blocks):
            text = f"{len(blocks)} blocks for a grant of {len(grant.blocks)}"
            raise TransferError(text, "mismatch")

        def done() -> None:
            self.notify(peer, Notification(grant.attempt, request_id, len(blocks)))

        return self._begin(len(blocks), deadline_s, done)

    def read(
        self, peer: NonePeer, offer: Offer, blocks: Sequence[int], positions: Sequence[int], *,
        deadline_s: float,
    ) -> Ticket:  # fmt: skip
        return self._begin(len(blocks), deadline_s, lambda: None)

    def notify(self, peer: NonePeer, notification: Notification) -> None:
        self._bell.ring(self._path(peer), notification)

    def listen(self, on_notification: Callable[[str, Notification], None]) -> None:
        self._bell.listen(on_notification)

    def expect(self, more: int) -> None:
        """Nothing is polled."""

    def is_dead(self, peer: NonePeer) -> bool:
        return not is_listening(self._path(peer))

    async def revoke(self, grant: Grant) -> Revocation:
        return Revocation.REVOKED if self.grants.fail(grant.attempt) else Revocation.UNKNOWN

    async def close(self) -> None:
        for ticket, timer in list(self._timers.items()):
            timer.cancel()
            ticket.end(TransferError("the engine is closed", "unavailable"))
        self._timers.clear()
        self._bell.close()

    def _path(self, peer: NonePeer) -> Path:
        return self._folder / f"{peer.engine_id}{BELL}"

    def _begin(self, blocks: int, deadline_s: float, done: Callable[[], None]) -> Ticket:
        ticket = Ticket(blocks * self.arena.layout.bytes_per_block)
        seconds = self._seconds_of(ticket.bytes)
        late = seconds > deadline_s
        wait = deadline_s if late else seconds
        self._timers[ticket] = asyncio.get_running_loop().call_later(
            wait, self._end, ticket, late, done
        )
        return ticket

    def _end(self, ticket: Ticket, late: bool, done: Callable[[], None]) -> None:
        del self._timers[ticket]
        if late:
            ticket.end(TransferError("its deadline passed", "timeout"))
            return
        try:
            done()
        except TransferError as error:
            ticket.end(error)
        else:
            ticket.end()
