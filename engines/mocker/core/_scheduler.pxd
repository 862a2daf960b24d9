# _scheduler.pxd: what the next step computes, under the profiles `vllm` and `classic`.
#
# vllm: one waiting and one running queue. A step has one token budget; running requests come
# first, oldest first, one token for a decode, the rest of the prompt for a prefill; what is left
# admits waiting requests in order, if all their known tokens have room.
#
# classic: waiting, prefill and decode queues. A request is admitted by what it would need without
# a cache, and waits for its prefill; a prompt gets all its blocks at its first chunk, and a chunk
# ends the phase; then each request whose prompt is computed brings a token, in the same step.
# The prefill and decode queues are one array: prompts are computed in the order of admission, so
# those that decode come first.
#
# Without room for a running request one is preempted: it loses its blocks, goes to the head of the
# waiting queue, and computes its tokens again later. No livelock: a request that does not fit the
# whole cache is never taken in. Of the youngest, the oldest one never is one, and moves on. Of the
# oldest, only one that has brought a token since it was admitted; while there is none, the youngest
# beside the one that needs room, which gets its token then. So between two preemptions of the same
# request somebody brought a token, and tokens are finite.
from libc.stdint cimport uint32_t, uint64_t

from ._kv_manager cimport KvManager, Sequence
from ._limits cimport Limits

cdef struct Step:
    uint64_t prefill       # tokens
    uint64_t attended      # by them: twice the sum of the contexts of each token
    uint64_t decode_tokens # how long the decodes are together
    uint32_t decodes
    uint32_t preempted
    uint32_t budget        # tokens that are left
    uint32_t arriving      # requests that were given blocks for a prompt that is handed over

cdef struct Queues:
    Sequence** running     # in order of admission
    uint32_t n_running
    uint32_t capacity      # for running ones
    Sequence* waiting      # the first one
    Sequence* last_waiting
    uint32_t n_waiting
    uint64_t blocked_at    # version of the pool at which the first waiting one did not fit
    Sequence* blocked      # that one
    Sequence* parked       # prompts that are kept for a reader, and requests whose own are under way

cdef Sequence* sequence_new(
    uint32_t request, uint32_t prompt, uint32_t output, const uint64_t* sequence_hashes,
    const uint64_t* local_hashes, uint32_t n_blocks, double follow
) noexcept nogil
cdef void sequence_free(Sequence* sequence) noexcept nogil
cdef void queues_free(Queues* queues) noexcept nogil
cdef void queues_add(Queues* queues, Sequence* sequence) noexcept nogil
# Forget a request and let go of its blocks, wherever it stands; 0 if there is none.
cdef bint queues_remove(Queues* queues, KvManager* kv, uint32_t request) noexcept nogil
# A request's prompt is computed, and kept until it is read.
cdef void queues_park(Queues* queues, Sequence* sequence) noexcept nogil
# Take a parked request out; NULL if there is none of that id in that state.
cdef Sequence* queues_unpark(Queues* queues, uint32_t request, int state) noexcept nogil
# A request runs next: one that was preempted, or one whose prompt has arrived. Those that have
# arrived come first, as they hold blocks: behind a request that waits for these, both would wait
# for ever.
cdef void queues_add_first(Queues* queues, Sequence* sequence) noexcept nogil
# Plan a step and move the counters of the requests in it; -1: no memory.
cdef int plan_step(
    Queues* queues, KvManager* kv, const Limits* limits, Step* step
) noexcept nogil
