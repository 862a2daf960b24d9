"""How long a tree's writer works from one chance for readers to the next: CPU time of its thread."""
from libc.stdint cimport uint32_t, uint64_t

from dynamo_router.indexer.tree._ops cimport tree_set_yield_points
from dynamo_router.indexer.tree._radix cimport RadixTree
from dynamo_router.base.native._yield_points cimport YieldPoints, no_yield_points

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_THREAD_CPUTIME_ID
    int clock_gettime(int, timespec*)

cdef struct Stretches:
    uint64_t began       # CPU time of the thread when the gate was closed
    uint64_t longest_ns
    uint64_t count


cdef inline uint64_t cpu_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef void admit_readers(void* context) noexcept nogil:
    cdef Stretches* stretches = <Stretches*>context
    stretches.longest_ns = max(stretches.longest_ns, cpu_ns() - stretches.began)
    stretches.count += 1


cdef void exclude_readers(void* context) noexcept nogil:
    (<Stretches*>context).began = cpu_ns()


cdef void yield_to_readers(void* context) noexcept nogil:
    admit_readers(context)
    exclude_readers(context)


cdef class StretchWatch:
    """Watches one tree while it lives; the tree is then one that is read by others.

    An operation between `begin` and `end` is as one under the write lock.
    """

    cdef Stretches stretches
    cdef RadixTree tree

    def __cinit__(self, RadixTree tree not None, uint32_t step=128):
        self.tree = tree
        tree_set_yield_points(
            tree.tree,
            YieldPoints(yield_to_readers, admit_readers, exclude_readers, &self.stretches, step, 0),
        )

    def __dealloc__(self):
        tree_set_yield_points(self.tree.tree, no_yield_points())

    def begin(self):
        exclude_readers(&self.stretches)

    def end(self):
        admit_readers(&self.stretches)

    def take_longest(self):
        """The longest stretch since the last call, in us."""
        longest = self.stretches.longest_ns / 1000
        self.stretches.longest_ns = 0
        return longest
