"""The grammar of KV events, over msgpack and JSON alike.

Tolerant at the edge: fields in any order, unknown ones passed over, a struct written as a map or
as an array of its fields. Strict within: a wrong type, a missing field, a byte too few or too many
refuse the whole message. Of a key that comes twice the last one counts.
"""

from libc.stdint cimport UINT32_MAX, UINT64_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from ._events cimport (
    EVENT_CLEARED, EVENT_REMOVED, EVENT_STORED, Event, EventBatch, batch_append_event,
    batch_reserve_blocks,
)
from ._json_reader cimport read_digits
from ._msgpack_reader cimport big_endian_64
from ._reader cimport (
    DECODE_END, DECODE_MISSING_FIELD, DECODE_OK, DECODE_UNKNOWN_EVENT, DECODE_WRONG_TYPE,
    ITEM_ARRAY, ITEM_INT, ITEM_MAP, ITEM_NIL, ITEM_TEXT, ByteReader, Item, as_hash, as_uint,
    remaining,
)
from ._syntax cimport (
    another_element, another_field, at_end, field_is, looks_like_json, next_element, next_field,
    open_array, open_struct,
    read_hash, read_uint, read_value, skip_value, text_is,
)

cdef enum:
    SMALLEST_BLOCK = 3       # bytes of a block in the densest msgpack form
    USUAL_BLOCK = 57         # bytes of a block as Dynamo writes it: see usual_block
    JSON_BLOCK = 70          # the most of {"block_hash":,"tokens_hash":} with two hashes


cdef inline bint usual_block(const uint8_t* at) noexcept nogil:
    """Whether these USUAL_BLOCK bytes are a block as Dynamo writes nearly all of them."""
    return (
        memcmp(at, b"\x83\xaablock_hash\xcf", 13) == 0
        and memcmp(at + 21, b"\xabtokens_hash\xcf", 13) == 0
        and memcmp(at + 42, b"\xadmm_extra_info\xc0", 15) == 0
    )


cdef inline bint usual_json_block(
    ByteReader* reader, uint64_t* external_hash, uint64_t* local_hash
) noexcept nogil:
    """Read {"block_hash":N,"tokens_hash":N}, as serializers write a block without spaces.

    False, and nothing is read, if it is anything else.
    """
    cdef const uint8_t* at = reader.at
    cdef bint huge = False, huge_local = False
    if remaining(reader) < JSON_BLOCK or memcmp(at, b'{"block_hash":', 14) != 0:
        return False
    if not c'1' <= at[14] <= c'9':  # zero, a sign or no number: seldom
        return False
    at = read_digits(at + 14, reader.end, external_hash, &huge)
    if huge or reader.end - at < 17 or memcmp(at, b',"tokens_hash":', 15) != 0:
        return False
    if not c'1' <= at[15] <= c'9':
        return False
    at = read_digits(at + 15, reader.end, local_hash, &huge_local)
    if huge_local or at == reader.end or at[0] != c'}':
        return False
    reader.at = at + 1
    return True


cdef int decode_block(
    ByteReader* reader, uint64_t* external_hash, uint64_t* local_hash
) noexcept nogil:
    cdef Item block, key
    cdef bint has_block = False, has_local = False
    cdef int code = open_struct(reader, &block)
    while another_field(reader, &block, &key, &code):
        if field_is(&key, "block_hash", 0):
            has_block = True
            code = read_hash(reader, external_hash)
        elif field_is(&key, "tokens_hash", 1):
            has_local = True
            code = read_hash(reader, local_hash)
        else:
            code = skip_value(reader)
    if code != DECODE_OK:
        return code
    return DECODE_OK if has_block and has_local else DECODE_MISSING_FIELD


cdef int decode_blocks(ByteReader* reader, EventBatch* batch) noexcept nogil:
    cdef Item blocks
    cdef uint64_t* external_hash
    cdef uint64_t* local_hash
    cdef uint64_t left
    cdef int code = open_array(reader, &blocks)
    if code == DECODE_OK and not reader.json:
        left = min(blocks.value, remaining(reader) // SMALLEST_BLOCK)
        code = batch_reserve_blocks(batch, left)
    while code == DECODE_OK:
        if not reader.json:
            while (
                blocks.position < blocks.value
                and remaining(reader) >= USUAL_BLOCK
                and usual_block(reader.at)
            ):
                batch.external_hashes[batch.n_blocks] = big_endian_64(reader.at + 13)
                batch.local_hashes[batch.n_blocks] = big_endian_64(reader.at + 34)
                batch.n_blocks += 1
                blocks.position += 1
                reader.at += USUAL_BLOCK
        code = next_element(reader, &blocks)
        if code == DECODE_OK:
            code = batch_reserve_blocks(batch, 1)
        if code != DECODE_OK:
            break
        external_hash = batch.external_hashes + batch.n_blocks
        local_hash = batch.local_hashes + batch.n_blocks
        if not (reader.json and usual_json_block(reader, external_hash, local_hash)):
            code = decode_block(reader, external_hash, local_hash)
        batch.n_blocks += 1
    return DECODE_OK if code == DECODE_END else code


cdef int decode_hashes(ByteReader* reader, EventBatch* batch) noexcept nogil:
    cdef Item hashes
    cdef int code = open_array(reader, &hashes)
    while another_element(reader, &hashes, &code):
        code = batch_reserve_blocks(batch, 1)
        if code == DECODE_OK:
            code = read_hash(reader, batch.external_hashes + batch.n_blocks)
            batch.n_blocks += 1
    return code


cdef int decode_stored(ByteReader* reader, EventBatch* batch, Event* event) noexcept nogil:
    cdef Item stored, key, parent
    cdef bint has_blocks = False, has_parent = False, has_others = False
    cdef int code = open_struct(reader, &stored)
    event.kind = EVENT_STORED
    while another_field(reader, &stored, &key, &code):
        if field_is(&key, "parent_hash", 0):
            has_parent = True
            code = read_value(reader, &parent)
            event.has_parent = code == DECODE_OK and parent.kind != ITEM_NIL
            if event.has_parent:
                code = as_hash(&parent, &event.parent_hash)
        elif field_is(&key, "blocks", 2):
            has_blocks = True
            batch.n_blocks = event.first
            code = decode_blocks(reader, batch)
        else:
            has_others = has_others or not field_is(&key, "start_position", 1)
            code = skip_value(reader)
    if code != DECODE_OK:
        return code
    if has_others and not has_parent:
        return DECODE_MISSING_FIELD  # one of the others may be its damaged name
    return DECODE_OK if has_blocks else DECODE_MISSING_FIELD


cdef int decode_removed(ByteReader* reader, EventBatch* batch, Event* event) noexcept nogil:
    cdef Item removed, key
    cdef bint has_hashes = False
    cdef int code = open_struct(reader, &removed)
    event.kind = EVENT_REMOVED
    while another_field(reader, &removed, &key, &code):
        if field_is(&key, "block_hashes", 0):
            has_hashes = True
            batch.n_blocks = event.first
            code = decode_hashes(reader, batch)
        else:
            code = skip_value(reader)
    if code != DECODE_OK:
        return code
    return DECODE_OK if has_hashes else DECODE_MISSING_FIELD


cdef int decode_data(ByteReader* reader, EventBatch* batch, Event* event) noexcept nogil:
    """What happened: "cleared", or a map whose one key names it."""
    cdef Item data, key
    cdef int code = read_value(reader, &data)
    if code != DECODE_OK:
        return code
    batch.n_blocks = event.first
    event.has_parent = False
    event.kind = EVENT_CLEARED
    if data.kind == ITEM_TEXT:
        return DECODE_OK if text_is(&data, "cleared") else DECODE_UNKNOWN_EVENT
    if data.kind != ITEM_MAP:
        return DECODE_WRONG_TYPE
    code = next_field(reader, &data, &key)
    if code != DECODE_OK:
        return DECODE_UNKNOWN_EVENT if code == DECODE_END else code
    if field_is(&key, "stored", UINT64_MAX):
        code = decode_stored(reader, batch, event)
    elif field_is(&key, "removed", UINT64_MAX):
        code = decode_removed(reader, batch, event)
    elif field_is(&key, "cleared", UINT64_MAX):
        code = skip_value(reader)
    else:
        return DECODE_UNKNOWN_EVENT
    if code == DECODE_OK:
        code = next_element(reader, &data)
        # Two things at once is a message of some future that we would read wrongly.
        return DECODE_OK if code == DECODE_END else DECODE_UNKNOWN_EVENT
    return code


cdef int decode_cache_event(ByteReader* reader, EventBatch* batch, Event* event) noexcept nogil:
    """event_id, data and dp_rank, into `event`."""
    cdef Item fields, key, rank
    cdef uint64_t number
    cdef bint has_id = False, has_data = False
    cdef int code = open_struct(reader, &fields)
    event.dp_rank = 0
    while another_field(reader, &fields, &key, &code):
        if field_is(&key, "event_id", 0):
            has_id = True
            code = read_uint(reader, UINT64_MAX, &event.event_id)
        elif field_is(&key, "data", 1):
            has_data = True
            code = decode_data(reader, batch, event)
        elif field_is(&key, "dp_rank", 2):
            code = read_value(reader, &rank)
            number = 0
            if code == DECODE_OK and rank.kind != ITEM_NIL:
                code = as_uint(&rank, UINT32_MAX, &number)
            event.dp_rank = <uint32_t>number
        else:
            code = skip_value(reader)
    if code != DECODE_OK:
        return code
    return DECODE_OK if has_id and has_data else DECODE_MISSING_FIELD


cdef int read_tier(ByteReader* reader, uint8_t* tier) noexcept nogil:
    cdef Item item
    cdef int code = read_value(reader, &item)
    if code != DECODE_OK:
        return code
    if item.kind == ITEM_NIL:
        tier[0] = 0
    elif item.kind != ITEM_TEXT:
        return DECODE_WRONG_TYPE
    elif text_is(&item, "device"):
        tier[0] = 0
    elif text_is(&item, "host_pinned"):
        tier[0] = 1
    elif text_is(&item, "disk"):
        tier[0] = 2
    else:
        tier[0] = 3  # external, or a tier of some future: not device memory, so never over-counted
    return DECODE_OK


cdef int decode_router_event(ByteReader* reader, EventBatch* batch) noexcept nogil:
    """One worker's cache event, appended to the batch."""
    cdef Item fields, key
    cdef Event event
    cdef bint has_worker = False, has_event = False
    cdef int code = open_struct(reader, &fields)
    memset(&event, 0, sizeof(event))
    event.first = batch.n_blocks
    while another_field(reader, &fields, &key, &code):
        if field_is(&key, "worker_id", 0):
            has_worker = True
            code = read_uint(reader, UINT64_MAX, &event.worker_id)
        elif field_is(&key, "storage_tier", 1):
            code = read_tier(reader, &event.tier)
        elif field_is(&key, "event", 3):
            has_event = True
            code = decode_cache_event(reader, batch, &event)
        else:
            code = skip_value(reader)
    if code != DECODE_OK:
        return code
    if not has_worker or not has_event:
        return DECODE_MISSING_FIELD
    event.count = batch.n_blocks - event.first
    return batch_append_event(batch, &event)


cdef int decode_payload(ByteReader* reader, EventBatch* batch) noexcept nogil:
    """Events, or one event, up to the reader's end."""
    cdef ByteReader start
    cdef Item item
    cdef int code
    reader.json = looks_like_json(reader)
    start = reader[0]
    code = read_value(reader, &item)
    if code != DECODE_OK:
        return code
    if item.kind == ITEM_ARRAY:
        code = next_element(reader, &item)
        if code == DECODE_OK and not is_int(reader):  # an int begins one event that is an array
            while code == DECODE_OK:
                code = decode_router_event(reader, batch)
                if code == DECODE_OK:
                    code = next_element(reader, &item)
            return at_end(reader) if code == DECODE_END else code
        if code != DECODE_OK:
            return at_end(reader) if code == DECODE_END else code
    reader[0] = start
    code = decode_router_event(reader, batch)
    return at_end(reader) if code == DECODE_OK else code


cdef bint is_int(const ByteReader* reader) noexcept nogil:
    """Whether the next value is an int; it stays unread."""
    cdef ByteReader ahead = reader[0]
    cdef Item item
    return read_value(&ahead, &item) == DECODE_OK and item.kind == ITEM_INT
