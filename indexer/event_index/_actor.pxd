"""The owner of the event-driven index, for kernels that use it."""
from libc.stdint cimport uint32_t, uint64_t

from ._threads cimport pthread_t


cdef class IndexActor:
    cdef object __weakref__
    cdef void* state         # the SharedState (_shared_state.pxd); owned
    cdef tuple trees         # RadixTree by Event.tier: they own the trees that the state names
    cdef pthread_t thread    # that empties the mailbox
    cdef bint running        # whether it was started and not yet joined

    cdef void stop_thread(self) noexcept

    # Wait for the read lock, then write the device's overlap of every bound worker to out[number]
    # and 0 elsewhere: the longest, UINT32_MAX without memory. The caller must not hold the GIL.
    cdef uint32_t read_overlaps(
        self, const uint64_t* local_hashes, uint32_t n, uint32_t* out, uint32_t n_out
    ) noexcept nogil

    # The same with the GIL, which is given away only if the lock is not free, by the overlaps that
    # every worker has `at_least`, and with `lower` the blocks of the other tiers. MemoryError.
    cdef uint32_t bound_overlaps(
        self, const uint64_t* local_hashes, uint32_t n, const uint32_t* at_least, uint32_t* out,
        uint32_t* lower, uint32_t n_out,
    ) except? 0xFFFFFFFF

    cdef bint has_lower_tiers(self) noexcept
