"""What Python hands to the tree and gets back, for the kernels with a Python face."""
from libc.stdint cimport uint64_t

from .._integers cimport UIntView
from ._ops cimport WorkerKey

# An id, which means its rank 0, or (worker_id, dp_rank). OverflowError, TypeError: neither.
cdef int read_worker(WorkerKey* key, worker) except -1

# Hashes of an event or a prompt. OverflowError, TypeError: no hashes; ValueError: too many.
cdef UIntView view_hashes(hashes)

# One hash. OverflowError, TypeError: it is none.
cdef uint64_t as_hash(number) except? 0

# Raises what a TreeStatus means: nothing, MemoryError or EventError.
cdef int raise_status(int status, uint64_t worker_id) except -1
