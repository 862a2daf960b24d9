"""The index that follows KV events: mailbox, cursor per source, a tree per tier, one owning thread.

Entered by the router and by whoever embeds an index; snapshots read and restore it.
"""

from .actor import READ_PATHS, EventIndex, ReadPath
from .snapshot import SnapshotHead, load_index, save_index

__all__ = [
    "EventIndex",
    "READ_PATHS",
    "ReadPath",
    "SnapshotHead",
    "load_index",
    "save_index",
]
