"""Field numbers of KvEventBatch (smg.grpc.common) and of what is in it."""

from ...base.native._protobuf cimport ByteReader, Field

cdef enum:               # field numbers of KvEventBatch
    SEQUENCE_NUMBER = 1
    EVENTS = 3
    DP_RANK = 4
    SNAPSHOT = 7
    LOAD = 8

cdef enum:               # of KvCacheEvent
    EVENT_ID = 1
    STORED = 2
    REMOVED = 3
    CLEARED = 4

cdef enum:               # of KvBlocksStored, KvBlocksRemoved, KvBlock, KvSnapshotChunk, EngineLoad
    BLOCKS = 1
    PARENT_BLOCK_HASH = 2
    STORED_TIER = 3
    STORED_SPEC_KIND = 6
    STORED_LOCALITY = 8
    STORED_LORA_NAME = 11
    STORED_CACHE_SALT = 12
    BLOCK_HASHES = 1
    REMOVED_CACHE_LEVEL = 2
    REMOVED_TIER = 3
    REMOVED_LOCALITY = 6
    BLOCK_HASH = 1
    TOKEN_IDS = 2
    BLOCK_SIZE = 3
    BLOCK_LORA_ID = 4
    BLOCK_CACHE_LEVEL = 5
    BLOCK_EXTRA_KEYS = 6
    EXTRA_KEY_TEXT = 1
    CHUNK_INDEX = 1
    CHUNK_COUNT = 2
    CHUNK_UNKNOWN_BEFORE = 4
    LOAD_ONLY = 9

cdef inline ByteReader inside(const Field* field) noexcept nogil:
    """The bytes of a delimited field."""
    cdef ByteReader reader
    reader.at = field.start
    reader.end = field.start + field.value
    return reader
