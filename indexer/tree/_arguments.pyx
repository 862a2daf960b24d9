"""What Python hands to the tree and gets back: workers, hashes, and errors for statuses."""
from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.stdint cimport uint64_t

from .._integers cimport UIntView, view_integers
from ._ops cimport (
    TREE_INVALID_SEQUENCE,
    TREE_NO_MEMORY,
    TREE_OK,
    TREE_PARENT_EVICTED,
    TREE_PARENT_NOT_FOUND,
    WorkerKey,
)

from operator import index

from ...base.errors import EventError
from ...base.identity import as_worker


cdef int read_worker(WorkerKey* key, worker) except -1:
    if type(worker) is int and 0 <= worker < 1 << 63:
        key.worker_id = PyLong_AsUnsignedLongLong(worker)
        key.dp_rank = 0
    else:
        worker = as_worker(worker)
        key.worker_id = worker[0]
        key.dp_rank = worker[1]
    return 0


cdef UIntView view_hashes(hashes):
    cdef UIntView view = view_integers(hashes, 8, "block hash")
    if view.size > 0x7FFFFFFF:
        raise ValueError(f"{view.size} hashes are more than an event or a prompt can have")
    return view


cdef uint64_t as_hash(number) except? 0:
    number = index(number)
    if not 0 <= number < 1 << 64:
        raise OverflowError(f"block hash {number} is out of range (0 to 2**64 - 1)")
    return number


cdef int raise_status(int status, uint64_t worker_id) except -1:
    """Raise what a status means."""
    if status == TREE_OK:
        return 0
    if status == TREE_NO_MEMORY:
        raise MemoryError
    if status == TREE_PARENT_NOT_FOUND:
        message, code = "Failed to find parent block", "parent_not_found"
    elif status == TREE_INVALID_SEQUENCE:
        message, code = "Invalid block sequence", "invalid_sequence"
    elif status == TREE_PARENT_EVICTED:
        message, code = "Parent block was dropped for want of room", "parent_evicted"
    else:
        message, code = "Failed to find block", "block_not_found"
    raise EventError(message, worker_id=worker_id, code=code)
