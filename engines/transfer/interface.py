"""Transfer: how an engine's blocks reach another one's memory, whichever way that is done.

Every call returns at once and none blocks the event loop for longer than a small copy. What goes
on is polled by `state`, or awaited by `finished`. Bytes of peers are checked before they are used.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from .arena import ArenaLayout, BlockArena
from .grants import BlockGrants, Grant
from .tickets import Ticket

PeerT = TypeVar("PeerT", bound="Peer")
VERSION = 1
"""Of the metadata, of grants and of notifications."""
CORRUPT = "KV_CORRUPT"
"""The word by which a block's wrong contents are reported."""


class Revocation(enum.Enum):
    REVOKED = "revoked"
    """nothing is written any more: the blocks are their owner's"""
    QUARANTINED = "quarantined"
    """the writer cannot be stopped: the blocks are of no use until it has ended"""
    UNKNOWN = "unknown"
    """the attempt has no grant: it has ended"""


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blocks that another engine may read, as long as their epochs are these."""

    engine_id: str
    attempt: str
    blocks: tuple[int, ...]
    epochs: tuple[int, ...]


class Notification(msgspec.Struct, frozen=True, rename={"attempt": "a", "request_id": "r",
                   "blocks": "n", "status": "s", "error": "e"}):  # fmt: skip
    """What an engine says of an attempt to the engine whose blocks it writes or reads."""

    attempt: str
    request_id: str = ""
    blocks: int = 0
    """that were written or read"""
    status: str = "done"
    """started, done or failed: after the last two its sender touches the blocks no more"""
    error: str = ""
    """why it failed: a `reason` of TransferError, or another word"""


class Peer(Protocol):
    """Another engine, as its metadata describes it. It is of one incarnation."""

    @property
    def engine_id(self) -> str: ...

    @property
    def layout(self) -> ArenaLayout: ...

    @property
    def blocks(self) -> int: ...


class Transfer(Protocol[PeerT]):
    """One engine's end, on the loop that opened it, until `close`.

    `grants` and `arena` are the engine's own blocks; only their owner calls `grants.allocate`,
    `free` and `grant`. `write` and `read` move whole blocks between layouts that may differ in
    `tp`. A deadline is in seconds from now.
    """

    kind: str
    engine_id: str
    grants: BlockGrants

    @property
    def arena(self) -> BlockArena: ...

    def export(self) -> bytes:
        """Metadata by which others `connect`; bound to this incarnation."""
        ...

    def connect(self, metadata: bytes) -> PeerT:
        """TransferError (version, stale, mismatch, dead, unavailable) for what is no live partner
        of ours. The same metadata gives the same peer."""
        ...

    def disconnect(self, peer: PeerT) -> None:
        """Forget a peer: what runs with it fails. Idempotent."""
        ...

    def write(
        self,
        peer: PeerT,
        blocks: Sequence[int],
        grant: Grant,
        request_id: str,
        *,
        deadline_s: float,
    ) -> Ticket:
        """Write blocks of ours into the blocks of the peer that it granted, then notify it."""
        ...

    def read(
        self,
        peer: PeerT,
        offer: Offer,
        blocks: Sequence[int],
        positions: Sequence[int],
        *,
        deadline_s: float,
    ) -> Ticket:
        """Read blocks that the peer offers, those at these positions of the offer, into ours.

        The peer is not notified: see `notify`. While the ticket runs our blocks may be written,
        also after its deadline: they are to be granted until then.
        """
        ...

    async def finished(self, ticket: Ticket) -> None:
        """Return once a transfer is done. TransferError if it failed."""
        ...

    async def settled(self, ticket: Ticket) -> None:
        """Return once it moves no byte any more, which may be after it failed by its deadline."""
        ...

    def notify(self, peer: PeerT, notification: Notification) -> None:
        """Send a notification. TransferError (dead) if that is known not to reach it."""
        ...

    def listen(self, on_notification: Callable[[str, Notification], None]) -> None:
        """Call `on_notification(engine_id, notification)` on the loop for each that comes from now
        on, once what it says has happened. What comes may be of any attempt, late or made up."""
        ...

    def expect(self, more: int) -> None:
        """`more` peers, fewer if negative, may read our blocks or notify us soon: notifications are
        looked for often while there are any."""
        ...

    def is_dead(self, peer: PeerT) -> bool:
        """Whether the peer's process is known to be gone. False: it is not known."""
        ...

    async def revoke(self, grant: Grant) -> Revocation:
        """End a right to write that we granted, and the grant if nothing is written any more."""
        ...

    async def close(self) -> None:
        """Let go of everything; peers see us as dead. Idempotent."""
        ...
