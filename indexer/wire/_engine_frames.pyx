"""Frames: batches of engines' streams under a publisher and numbers of the router's own.

An engine's stream has no publisher, and its event ids are not ours to rely on: its reader puts a
header before each batch, with a publisher of its own and numbers without a hole.
"""
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from ._events cimport (
    BATCH_TIERS, EVENT_CLEARED, Event, EventBatch, batch_append_cleared, batch_append_event,
    batch_reserve_blocks,
)
from ._grpc_batch cimport append_grpc_batch
from ._reader cimport DECODE_MALFORMED, DECODE_OK, DECODE_OUT_OF_RANGE, DECODE_TOO_LARGE

cdef struct Header:          # of a frame, little-endian as it is here
    uint8_t mark             # FRAME_MARK
    uint8_t clears           # the worker's blocks are forgotten before the batch is applied
    uint8_t decoded          # EngineEventDecoder made the batch; else it is a KvEventBatch
    uint8_t unused
    uint32_t dp_rank
    uint64_t worker_id
    uint64_t publisher_id
    uint64_t sequence
    uint64_t first_event_id
    uint32_t block_size      # tokens
    uint8_t unused_too[4]

cdef enum:
    FRAME_HEADER = 48        # bytes of Header


cdef int append_decoded(
    EventBatch* batch, Event* named, const uint8_t* data, size_t size
) noexcept nogil:
    """The events of a decoded batch, of the worker and from the number on that `named` has."""
    cdef DecodedHead head
    cdef Event event
    cdef size_t hashes
    cdef uint32_t i
    cdef int code
    if size < DECODED_HEAD:
        return DECODE_MALFORMED
    memcpy(&head, data, DECODED_HEAD)
    data += DECODED_HEAD
    hashes = <size_t>head.n_blocks * sizeof(uint64_t)
    if size != DECODED_HEAD + <size_t>head.n_events * sizeof(Event) + 2 * hashes:
        return DECODE_MALFORMED
    code = batch_reserve_blocks(batch, head.n_blocks)
    for i in range(head.n_events):
        if code != DECODE_OK:
            return code
        memcpy(&event, data, sizeof(Event))
        data += sizeof(Event)
        if event.kind > EVENT_CLEARED or event.tier >= BATCH_TIERS or (
            <uint64_t>event.first + event.count > head.n_blocks
        ):
            return DECODE_OUT_OF_RANGE
        event.worker_id = named.worker_id
        event.dp_rank = named.dp_rank
        event.event_id = named.event_id + i
        code = batch_append_event(batch, &event)
    if hashes:
        memcpy(batch.external_hashes, data, hashes)
        memcpy(batch.local_hashes, data + hashes, hashes)
    batch.n_blocks = head.n_blocks
    return code


cdef int decode_frame(EventBatch* batch, const uint8_t* data, size_t size) noexcept nogil:
    cdef Header header
    cdef Event event
    cdef int code = DECODE_OK
    if size < FRAME_HEADER:
        return DECODE_MALFORMED
    if size > UINT32_MAX:
        return DECODE_TOO_LARGE
    memcpy(&header, data, FRAME_HEADER)
    batch.publisher_id = header.publisher_id
    batch.sequence = header.sequence
    batch.has_envelope = True
    memset(&event, 0, sizeof(Event))
    event.worker_id = header.worker_id
    event.dp_rank = header.dp_rank
    event.event_id = header.first_event_id
    data += FRAME_HEADER
    size -= FRAME_HEADER
    if header.clears:
        code = batch_append_cleared(batch, &event)
        event.event_id += BATCH_TIERS
    if code != DECODE_OK or size == 0:
        return code
    if header.decoded:
        return append_decoded(batch, &event, data, size)
    return append_grpc_batch(batch, &event, data, size, header.block_size)


def frame_batch(
    bytes data not None,
    *,
    uint64_t worker_id,
    uint32_t dp_rank,
    uint64_t publisher_id,
    uint64_t sequence,
    uint64_t first_event_id,
    uint32_t block_size,
    bint clears=False,
    bint decoded=False,
):
    """A message for `EventIndex.post` with the events of a batch, numbered from `first_event_id`
    on. With `clears` they begin with CLEARED_EVENTS that forget what the worker holds.

    External hashes are the engine's; local hashes are made of the tokens, adapter and salt. A block
    with other keys matches no prompt; blocks behind one that is not full are left out, as are
    groups of a hybrid model other than full attention, and blocks in a remote pool. OverflowError:
    a number too large.
    """
    cdef Header header
    memset(&header, 0, sizeof(Header))
    header.mark = FRAME_MARK
    header.clears = clears
    header.decoded = decoded
    header.dp_rank = dp_rank
    header.worker_id = worker_id
    header.publisher_id = publisher_id
    header.sequence = sequence
    header.first_event_id = first_event_id
    header.block_size = block_size
    return (<const char*>&header)[:FRAME_HEADER] + data
