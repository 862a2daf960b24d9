"""The index that follows KV events: mailbox, cursor per source, a tree per tier, one owning thread.

Entered by the router and by programs that embed an index: through EventIndex and its snapshots, or
natively through `_actor.pxd`.
"""

from .actor import EventIndex
from .snapshot import (
    ForeignSnapshotError,
    SnapshotHead,
    dump_index,
    load_index,
    merge_index,
    read_frames,
    restore_index,
    save_index,
)
