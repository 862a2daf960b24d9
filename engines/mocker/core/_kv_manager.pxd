# _kv_manager.pxd: what requests hold of an engine's cache, and what is told of its changes.
#
# Requests hold blocks on the device. What it evicts goes down to the tiers below, and what a prompt
# finds there is loaded: the step that needs it waits until `ready`.
#
# The four signals: `kv_grow` uses blocks and promotes the partial one, `kv_release` derefs full
# blocks and destroys the partial one. A request holds its blocks from the first one on and lets go
# of the last one first, so the cached blocks of any request are a prefix of it.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from ._frequency cimport Frequencies
from ._journal cimport Journal
from ._limits cimport CacheLimits
from ._lower_tiers cimport LowerTiers
from ._pool cimport Pool
from ._retention cimport Retention

cdef struct Sequence:      # what every step touches comes first: half a cache line
    double last_token      # when its last token came
    uint32_t known         # tokens that exist: prompt and generated ones
    uint32_t computed      # tokens whose keys and values are in the cache
    uint32_t generated
    uint32_t output        # tokens it will generate
    uint32_t slack         # tokens the partial block takes before it is full, less the last one
    uint32_t held          # full blocks held, from the first one on
    uint32_t planned       # prompt tokens of the running step
    uint8_t decoding       # whether it is one of the running step's decodes
    uint8_t partial        # whether it holds a partial block behind the full ones
    uint64_t* sequence_hashes   # of every block it may fill
    uint64_t* local_hashes      # aligned; one allocation with sequence_hashes and ids
    uint32_t* ids          # the blocks it holds
    Sequence* next         # in the waiting queue
    double follow          # seconds after its end that another request follows; negative: none
    uint32_t request
    uint32_t began_with    # tokens it had generated when it was admitted
    Retention retention    # what is to be kept of it, once it is over
    int32_t cached         # prompt tokens found in the cache when it first ran; -1 before
    uint32_t preemptions
    uint8_t handoff        # see Handoff
    uint32_t reserved      # blocks on the device that are kept for what is handed over

cdef enum Handoff:         # how far a request whose legs are at two engines has come
    NO_HANDOFF = 0
    HANDS_OVER = 1         # its prompt is computed here, and kept until it is read
    HANDED_OVER = 2        # it comes with a prompt that was computed elsewhere, and waits for blocks
    ARRIVING = 3           # it has them, and what they hold is under way
    ARRIVED = 4            # it can decode

cdef struct KvManager:
    Pool pool              # the device
    LowerTiers tiers       # below it
    Journal journal
    Frequencies frequencies # of blocks, where eviction goes by them
    uint32_t block_size
    double now             # when what changes is told
    double ready           # when all that was asked for of late is on the device

cdef int kv_init(KvManager* kv, const CacheLimits* limits, bint journal) noexcept nogil
cdef void kv_free(KvManager* kv) noexcept nogil
# Time has passed until `now`, in which levels may have ended. Nothing is asked for yet.
cdef void kv_pass_time(KvManager* kv, double now) noexcept nogil
# A request comes whose retention ends at some time: 0; -1: no memory.
cdef int kv_expect_deadlines(KvManager* kv) noexcept nogil
# Leading ones of the first `limit` blocks that are cached, in whatever tier; `shared`: of those, held
# by somebody.
cdef uint32_t kv_match(
    const KvManager* kv, const Sequence* sequence, uint32_t limit, uint32_t* shared
) noexcept nogil
# Leading tokens that need not be computed. The last known one is computed in any case: its result
# is the next token.
cdef uint32_t kv_cached_tokens(const KvManager* kv, const Sequence* sequence) noexcept nogil
# Get the blocks for `tokens` more: 1; 0, nothing done, if above `limit` active ones; -1: no memory.
cdef int kv_grow(
    KvManager* kv, Sequence* sequence, uint32_t tokens, uint32_t limit
) noexcept nogil
# Hold what is cached of the prompt, and keep blocks for the rest of it, which is under way. The caller
# knows that they fit. 1; 0, nothing done, if they do not; -1: no memory.
cdef int kv_expect(KvManager* kv, Sequence* sequence) noexcept nogil
# The rest has come: its blocks are as if it had been computed here. 1; 0: there is no room, which
# cannot be while they are kept; -1: no memory.
cdef int kv_arrive(KvManager* kv, Sequence* sequence) noexcept nogil
# Load what the tiers below the device have of the first `blocks` blocks that is next to what the
# device has, as if a request came for it and went, from `now` on: blocks loaded; -1: no memory.
# 0 if they do not fit beside the blocks that are held.
cdef int64_t kv_prefetch(
    KvManager* kv, Sequence* sequence, uint32_t blocks, double now
) noexcept nogil
# Give up all blocks, the last one first.
cdef void kv_release(KvManager* kv, Sequence* sequence) noexcept nogil
# [(sequence hash, parent's or None, local hash, holders)] of a tier's blocks, in the order they came.
cdef list kv_listing(const KvManager* kv, int tier)
# The same tier; IndexError if there is none of that number.
cdef int check_tier(int tier) except -1
# The whole cache into the journal, as an announcement at `now`; -1: no memory.
cdef int kv_announce(
    KvManager* kv, double now, uint32_t max_events, uint32_t max_blocks
) noexcept nogil
