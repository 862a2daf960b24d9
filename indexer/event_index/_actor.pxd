# _actor.pxd: the owner of the event-driven index, for kernels that use it.
from ._shared_state cimport Core
from ._threads cimport pthread_t


cdef class IndexActor:
    cdef Core* core          # owned; what the threads share
    cdef tuple trees         # RadixTree by Event.tier: they own the trees that core names
    cdef pthread_t thread    # that empties the mailbox
    cdef bint running        # whether it was started and not yet joined

    cdef void stop_thread(self) noexcept
    cdef list census(self, bint recovering)
