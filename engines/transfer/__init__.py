"""How do blocks get from one engine's memory into another's? Arenas, grants, three transfers.

Entered by mock engines. `open_transfer` gives the one that a setting names.
"""

from .arena import ArenaLayout, BlockArena
from .config import TransferConfig
from .grants import BlockGrants, BlockState, Grant, GrantError
from .interface import (
    CORRUPT,
    Notification,
    Offer,
    Peer,
    Revocation,
    Transfer,
)
from .metrics import TransferMetrics
from .none import NoTransfer
from .shm import ShmTransfer
from .tickets import Ticket, TransferError, TransferState

__all__ = [
    "ArenaLayout",
    "BlockArena",
    "BlockGrants",
    "BlockState",
    "CORRUPT",
    "Grant",
    "GrantError",
    "NoTransfer",
    "Notification",
    "Offer",
    "Peer",
    "Revocation",
    "ShmTransfer",
    "Ticket",
    "Transfer",
    "TransferConfig",
    "TransferError",
    "TransferMetrics",
    "TransferState",
]
