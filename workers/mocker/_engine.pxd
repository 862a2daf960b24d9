# _engine.pxd: an engine in virtual time. Restates scheduler.py and engine.py, step for step.
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from ._journal cimport Journal
from ._pool cimport Pool

cdef struct Timing:
    double total_tokens    # what the whole cache holds
    double decode_speedup

cdef struct Limits:
    uint32_t block_size
    uint32_t max_num_seqs
    uint32_t budget        # tokens of a step
    uint32_t admission     # most active blocks after an admission
    uint8_t chunked

cdef struct Sequence:      # what every step touches comes first: half a cache line
    double last_token      # when its last token came
    uint32_t known         # tokens that exist: prompt and generated ones
    uint32_t computed      # tokens whose keys and values are in the cache
    uint32_t generated
    uint32_t output        # tokens it will generate
    uint32_t slack         # tokens the partial block takes before it is full, less the last one
    uint32_t held          # full blocks held, from the first one on
    uint64_t* names        # sequence hashes of every block it may fill
    uint64_t* contents     # local hashes, aligned; one allocation with names and ids
    uint32_t* ids          # the blocks it holds
    Sequence* next         # in the waiting queue
    double follow          # seconds after its end that another request follows; negative: none
    uint32_t request
    int32_t cached         # prompt tokens found in the cache when it first ran; -1 before
    uint32_t preemptions
    uint8_t partial        # whether it holds a partial block behind the full ones

cdef struct Emission:
    double time            # end of the step
    double follow          # of its request, if that is done
    uint32_t request
    uint8_t kind           # bit 0: its first token; bit 1: its last one
    int32_t cached
    uint32_t preemptions

cdef struct Gap:
    double seconds         # between two tokens of a request
    uint32_t count         # requests that saw it at the same time

cdef struct Record:        # of the whole fleet; grows, and is read by its owner
    Emission* emissions
    size_t n_emissions, emissions_room
    Gap* gaps
    size_t n_gaps, gaps_room
    uint32_t followed      # requests in the engines that others follow
    double stop            # when the first of those that were called for arrives
    bint to_answer         # stop at the first emission as well

cdef struct Engine:
    Pool pool
    Journal journal
    Sequence** running     # in order of admission
    uint32_t n_running
    uint32_t running_room
    Sequence* waiting      # the first one
    Sequence* last_waiting
    uint32_t n_waiting
    uint32_t steps
    double speed           # how much faster its steps are than the timing says
    double clock           # when the next step may begin; the end of the running one
    uint8_t stepping
    Emission* pending      # what the running step brings
    uint32_t n_pending
    uint32_t pending_room
    uint64_t blocked_at    # version of the pool at which the first waiting one did not fit
    Sequence* blocked      # that one
    uint64_t next_event
    double busy            # seconds of all steps
    double waited          # seconds of all steps times the requests that waited meanwhile
    uint32_t most_waiting

cdef int engine_init(
    Engine* engine, uint32_t capacity, bint journal, double speed
) noexcept nogil
cdef void engine_free(Engine* engine) noexcept nogil
cdef Sequence* sequence_new(
    uint32_t request, uint32_t prompt, uint32_t output, const uint64_t* names,
    const uint64_t* contents, uint32_t n_blocks, double follow
) noexcept nogil
# Queue a request; the engine owns it from here on.
cdef void engine_submit(Engine* engine, Sequence* sequence, double now) noexcept nogil
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
# The whole cache into the journal, as an announcement at `now`; -1: no memory.
cdef int engine_announce(
    Engine* engine, double now, uint32_t max_events, uint32_t max_blocks
) noexcept nogil
