"""How do blocks get from one engine's memory into another's? Arenas, grants, three transfers.

Entered by mock engines; TransferConfig opens the transfer that a setting names.
"""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .config import TransferConfig

if TYPE_CHECKING:
    from .arena import ArenaLayout
    from .grants import BlockGrants, BlockState, Grant, GrantError
    from .interface import CORRUPT, Notification, Offer, Revocation, Transfer
    from .metrics import TransferMetrics
    from .nixl import NixlTransfer
    from .shm import ShmTransfer
    from .tickets import Ticket, TransferError, TransferState

_INTERFACE = "CORRUPT Notification Offer Revocation Transfer"
# What moves blocks is imported by its first user, so that settings are read without it.
__getattr__ = lazy_names(
    __name__,
    {
        "ArenaLayout": ".arena",
        **dict.fromkeys(("BlockGrants", "BlockState", "Grant", "GrantError"), ".grants"),
        **dict.fromkeys(_INTERFACE.split(), ".interface"),
        "TransferMetrics": ".metrics",
        "NixlTransfer": ".nixl",
        "ShmTransfer": ".shm",
        **dict.fromkeys(("Ticket", "TransferError", "TransferState"), ".tickets"),
    },
)
