# _events.pxd: KV events as C structs: what the codecs (_wire) produce and the index applies.
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef enum EventKind:
    EVENT_STORED = 0
    EVENT_REMOVED = 1
    EVENT_CLEARED = 2
    EVENT_HEARTBEAT = 3      # no event: event_id is that of the source's last one


cdef struct Event:
    uint64_t worker_id
    uint64_t event_id
    uint64_t parent_hash     # meaningful when has_parent
    uint32_t dp_rank
    uint32_t first           # offset of its blocks in the batch's arrays
    uint32_t count           # its blocks; 0 for cleared
    uint8_t kind             # EventKind
    uint8_t tier             # 0 device, 1 host_pinned, 2 disk, 3 external
    uint8_t has_parent


cdef struct EventBatch:      # owned arrays, reused between messages
    Event* events
    uint32_t n_events
    uint32_t events_capacity
    uint64_t* block_hashes   # stored: external hashes; removed: external hashes
    uint64_t* local_hashes   # stored: tokens_hash, aligned with block_hashes (unused for removed)
    uint32_t n_blocks
    uint32_t blocks_capacity  # of both arrays
    uint64_t publisher_id    # meaningful when has_envelope
    uint64_t sequence        # meaningful when has_envelope
    uint8_t has_envelope
    uint8_t topic            # Topic (_wire.pxd)
