# _engine.pxd: an engine as a state machine: requests and times in, steps and tokens out.
#
# It knows no tokens, only hashes. Driven in virtual time by _virtual.pyx and in real time, a step
# at a time, by _single_engine.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from ._kv_manager cimport KvManager, Sequence
from ._limits cimport Limits
from ._scheduler cimport Queues, Step
from ._timing cimport Timing

cdef enum:
    FIRST_TOKEN = 1
    LAST_TOKEN = 2
    WAITS_FOR_PROMPT = 4   # it has blocks for a prompt that is handed over: a transfer may begin

cdef struct Emission:
    double time            # end of the step
    double follow          # of its request, if that is done
    uint32_t request
    uint8_t kind           # FIRST_TOKEN, LAST_TOKEN, both or none
    int32_t cached
    uint32_t preemptions

cdef struct Gap:
    double seconds         # between two tokens of a request
    uint32_t count         # requests that saw it at the same time

cdef struct Record:        # of the whole fleet; grows, and is read by its owner
    Emission* emissions
    size_t n_emissions, emissions_capacity
    Gap* gaps
    size_t n_gaps, gaps_capacity
    uint32_t followed      # requests in the engines that others follow
    double stop            # when the first of those that were called for arrives
    bint to_answer         # stop at the first emission as well

cdef struct Engine:
    KvManager kv
    Queues queues
    double speed           # how much faster its steps are than the timing says
    double clock           # when the next step may begin; the end of the running one
    uint8_t stepping
    uint8_t stuck          # nothing can be computed before a request or a prompt comes, or one is read
    uint32_t workless      # steps without work since the last one with some
    uint8_t every_token    # `pending` has them all; else a request's first and last ones
    Emission* pending      # what the running step brings
    uint32_t n_pending
    uint32_t pending_capacity
    uint64_t next_event
    uint32_t steps
    double took            # seconds of the step that was begun last
    double busy            # and of all steps
    double loaded_s        # and of those that they waited for lower tiers
    uint64_t prefetched    # blocks that came onto the device for requests that were expected
    double waited          # seconds of all steps times the requests that waited meanwhile
    uint32_t most_waiting

# `engine` is zeroed; its first step begins at `start` at the earliest: 0; -1: no memory.
cdef int engine_init(
    Engine* engine, const Limits* limits, bint journal, double speed, double start
) noexcept nogil
cdef void engine_free(Engine* engine) noexcept nogil
# Whether a request is here, or a step runs.
cdef bint engine_is_busy(const Engine* engine) noexcept nogil
# Queue a request of so many tokens. ValueError if its hashes are too few, MemoryError.
cdef int engine_submit(
    Engine* engine, const Limits* limits, uint32_t request, uint32_t prompt, uint32_t output,
    const uint64_t[::1] sequence_hashes, const uint64_t[::1] local_hashes,
    double follow, double now, object retention, int handoff=*
) except -1
# The prompt of a request that waits for it has come (ARRIVING), or one that is kept was read
# (HANDS_OVER); 0 if there is no such request. MemoryError.
cdef bint engine_settle_handoff(
    Engine* engine, uint32_t request, int state, double now
) except -1
# Load what the tiers below the device have of these blocks, for a request that is expected; their
# number. `request` is whose blocks the journal says they are. ValueError, MemoryError.
cdef int64_t engine_prefetch(
    Engine* engine, uint32_t request, const uint64_t[::1] sequence_hashes,
    const uint64_t[::1] local_hashes, double now
) except -1
# Begin the step at the engine's clock, which then tells its end; -1: no memory. `record`, which may
# be NULL, is told the gaps.
cdef int engine_begin_step(
    Engine* engine, const Limits* limits, const Timing* timing, Record* record, Step* step
) noexcept nogil
# Begin every step that begins before `until`, end every one that ends until then; -1: no memory.
cdef int engine_advance(
    Engine* engine, const Limits* limits, const Timing* timing, Record* record, double until
) noexcept nogil
# The same for a fleet, in the order of time, as long as nobody arrives: see Record.stop. `queue`
# has room for an entry per engine.
cdef int engines_advance(
    Engine* engines, uint32_t size, uint32_t* queue, const Limits* limits, const Timing* timing,
    Record* record, double until
) noexcept nogil
