# _limits.pxd: what one engine may do and how much it has, read once from its settings.
from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    LOWER = 2              # tiers below the device: host memory and disk

cdef struct CacheLimits:
    uint32_t block_size
    uint32_t device_blocks # most of them on the device
    uint32_t lower_blocks[2]   # and in each tier below it; 0: there is no such tier
    double block_s[2]      # seconds to load a block from there onto the device
    uint8_t hidden         # the tiers below the device are not told of
    uint8_t lineage        # eviction by lineage, else by last use
    uint8_t multi          # and that within classes of how often a block was used

cdef struct Limits:
    CacheLimits cache
    uint32_t block_size
    uint32_t max_num_seqs
    uint32_t budget        # tokens of a step
    uint32_t admission     # most active blocks after an admission
    uint8_t chunked
    uint8_t classic        # else vllm
    uint8_t oldest_first   # who is preempted; else the youngest


cdef inline int read_limits(Limits* limits, config) except -1:
    """From an EngineConfig."""
    cdef int tier
    tiers = config.tiers
    limits.block_size = limits.cache.block_size = config.block_size
    limits.max_num_seqs = config.max_num_seqs
    limits.budget = config.max_num_batched_tokens
    limits.admission = config.admission_blocks
    limits.chunked = config.enable_chunked_prefill
    limits.classic = config.engine_type == "classic"
    limits.oldest_first = config.preempts == "fifo"
    limits.cache.device_blocks = config.num_gpu_blocks
    for tier, (blocks, bandwidth) in enumerate(tiers.lower):
        limits.cache.lower_blocks[tier] = blocks
        limits.cache.block_s[tier] = config.block_size * tiers.kv_bytes_per_token / bandwidth
    limits.cache.hidden = tiers.hide_tiers
    limits.cache.lineage = tiers.eviction == "lineage"
    limits.cache.multi = tiers.eviction == "multi-lru"
    return 0
