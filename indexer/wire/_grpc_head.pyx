"""The head of a KvEventBatch: what its reader must know before the index decodes it."""
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memset

from ...base.native._protobuf cimport (
    DELIMITED,
    VARINT,
    ByteReader,
    Field,
    count_numbers,
    read_field,
)
from ._events cimport BATCH_TIERS
from ._grpc_fields cimport (
    BLOCKS,
    BLOCK_SIZE,
    CHUNK_COUNT,
    CHUNK_INDEX,
    CHUNK_UNKNOWN_BEFORE,
    CLEARED,
    DP_RANK,
    EVENT_ID,
    EVENTS,
    LOAD,
    LOAD_ONLY,
    SEQUENCE_NUMBER,
    SNAPSHOT,
    STORED,
    TOKEN_IDS,
    inside,
)

cdef struct Head:            # what a reader of the stream must know of a batch
    uint64_t sequence
    uint64_t events          # that _grpc_batch makes of it
    uint64_t first_id        # the engine's numbers of its events; 0: not numbered
    uint64_t last_id
    uint64_t chunk_index
    uint64_t chunk_count     # 0: no chunk of a snapshot
    uint64_t unknown_before
    uint64_t wrong_size      # tokens of a block that cannot be one of ours; 0: there is none
    uint32_t dp_rank
    bint has_rank
    bint load_only
    bint hole                # in the engine's numbers


cdef bint block_tokens(ByteReader reader, uint64_t* size) noexcept nogil:
    """How many tokens a block has, as it says itself, else counted; false if it is none."""
    cdef Field field
    cdef ByteReader all = reader
    cdef uint64_t other = 0
    size[0] = 0
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return False
        if field.number == BLOCK_SIZE and field.wire == VARINT:
            size[0] = max(0, <int32_t>field.value)
    return size[0] != 0 or count_numbers(all, TOKEN_IDS, size, &other)


cdef bint look_at_blocks(Head* head, ByteReader reader, uint64_t block_size) noexcept nogil:
    """Notice a block that is not the end of a prompt and has another size than ours."""
    cdef Field field
    cdef uint64_t size
    cdef uint64_t before = block_size
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return False
        if field.number != BLOCKS or field.wire != DELIMITED:
            continue
        if not block_tokens(inside(&field), &size):
            return False
        if before != block_size:
            head.wrong_size = before
        elif size > block_size:
            head.wrong_size = size
        before = size
    return True


cdef bint look_at_event(Head* head, ByteReader reader, uint64_t block_size) noexcept nogil:
    cdef Field field
    cdef uint64_t event_id = 0
    cdef uint64_t made = 1
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return False
        if field.number == EVENT_ID and field.wire == VARINT:
            event_id = field.value
        elif field.number == STORED and field.wire == DELIMITED:
            if not look_at_blocks(head, inside(&field), block_size):
                return False
        if field.wire == DELIMITED and STORED <= field.number <= CLEARED:
            made = BATCH_TIERS if field.number == CLEARED else 1
    head.events += made
    if event_id:
        if head.last_id == 0:
            head.first_id = event_id
        elif event_id > head.last_id + 1:
            head.hole = True
        head.last_id = event_id
    return True


cdef bint look_at_chunk(Head* head, ByteReader reader) noexcept nogil:
    cdef Field field
    head.chunk_count = 1
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return False
        if field.wire != VARINT:
            continue
        if field.number == CHUNK_INDEX:
            head.chunk_index = field.value
        elif field.number == CHUNK_COUNT:
            head.chunk_count = field.value
        elif field.number == CHUNK_UNKNOWN_BEFORE:
            head.unknown_before = field.value
    return True


cdef bint look_at_load(Head* head, ByteReader reader) noexcept nogil:
    cdef Field field
    while reader.at < reader.end:
        if not read_field(&reader, &field):
            return False
        if field.number == LOAD_ONLY and field.wire == VARINT:
            head.load_only = field.value != 0
    return True


cdef bint look_at_batch(Head* head, ByteReader reader, uint64_t block_size) noexcept nogil:
    """Fill a head in; false if the bytes are no KvEventBatch."""
    cdef Field field
    cdef bint good = True
    memset(head, 0, sizeof(Head))
    while reader.at < reader.end and good:
        if not read_field(&reader, &field):
            return False
        if field.wire == VARINT and field.number == SEQUENCE_NUMBER:
            head.sequence = field.value
        elif field.wire == VARINT and field.number == DP_RANK:
            head.dp_rank = <uint32_t>field.value
            head.has_rank = True
        elif field.wire == DELIMITED and field.number == EVENTS:
            good = look_at_event(head, inside(&field), block_size)
        elif field.wire == DELIMITED and field.number == SNAPSHOT:
            good = look_at_chunk(head, inside(&field))
        elif field.wire == DELIMITED and field.number == LOAD:
            good = look_at_load(head, inside(&field))
    return good


def read_head(bytes data not None, uint32_t block_size):
    """The fields of grpc_batch.BatchHead; None if the bytes are no KvEventBatch."""
    cdef Head head
    cdef ByteReader reader
    reader.at = data
    reader.end = reader.at + len(data)
    if not look_at_batch(&head, reader, block_size):
        return None
    return (
        head.sequence,
        head.dp_rank if head.has_rank else -1,
        head.events,
        head.first_id,
        head.last_id,
        head.hole,
        head.chunk_index,
        head.chunk_count,
        head.unknown_before,
        head.load_only,
        head.wrong_size,
    )
