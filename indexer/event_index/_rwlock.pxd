"""The reader-writer lock of the index: many readers, or the one writer.

It is the phase-fair ticket lock of Brandenburg and Anderson ("Spin-based reader-writer
synchronization for multiprocessor real-time systems", Real-Time Systems 46, 2010) for one writer.
A reader counts itself in, and waits only if the writer had its mark up at that moment, until that
mark is gone: for one turn of the writer at most, even if the writer is back at once. The writer
waits for the readers that came before its mark, and for none that came after. So neither can
starve the other.

A thread that holds the lock waits for nothing, least of all for the GIL: threads that wait for the
lock may hold that. All orders are sequentially consistent: a thread that goes to sleep and one that
would have to wake it must not both miss the other. Modelled in tests/oracles/rwlock_model.py.
"""
from libc.stdint cimport uint32_t

from ._threads cimport (
    atomic_add,
    atomic_load,
    cpu_relax,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_t,
    pthread_cond_wait,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)

cdef enum:
    MARK = 3            # the bits of `arrived` that are the writer's
    WRITING = 2         # one of them; the other distinguishes one turn from the next
    READER = 4          # one reader, in `arrived` and `left`
    SPINS = 500         # looks before sleep: longer than a step of work takes, if all are running

cdef struct RwLock:
    uint32_t arrived        # READER for each reader that ever came, and the writer's mark; atomic
    char apart[60]          # readers leave on another cache line than they come in on
    uint32_t left           # READER for each reader that ever left; atomic
    uint32_t asleep         # threads that sleep until something moves; atomic
    uint32_t turn           # the writer's own: the mark of its turn
    uint32_t before         # the writer's own: `arrived` when it put that up, the mark left out
    pthread_mutex_t lock    # guards falling asleep
    pthread_cond_t moved    # signalled when something moved


cdef inline void rwlock_init(RwLock* lock) noexcept nogil:
    """Of a zeroed struct."""
    lock.turn = WRITING
    pthread_mutex_init(&lock.lock, NULL)
    pthread_cond_init(&lock.moved, NULL)


cdef inline void rwlock_destroy(RwLock* lock) noexcept nogil:
    pthread_cond_destroy(&lock.moved)
    pthread_mutex_destroy(&lock.lock)


cdef inline bint rwlock_bars_reader(RwLock* lock, uint32_t ticket) noexcept nogil:
    """Whether the turn of the writer that a reader met still lasts."""
    return (atomic_load(&lock.arrived) & MARK) == ticket


cdef inline bint rwlock_has_readers(RwLock* lock) noexcept nogil:
    """Whether readers that came before the writer's mark still read."""
    return atomic_load(&lock.left) != lock.before


cdef inline void rwlock_wake(RwLock* lock) noexcept nogil:
    """Something moved: all who sleep look again."""
    if atomic_load(&lock.asleep) != 0:
        pthread_mutex_lock(&lock.lock)
        pthread_cond_broadcast(&lock.moved)
        pthread_mutex_unlock(&lock.lock)


# Readers -----------------------------------------------------------------------------------------

cdef inline uint32_t rwlock_read_try(RwLock* lock) noexcept nogil:
    """Ask to read: 0 if the caller may, else a ticket for rwlock_read_wait. Takes microseconds at
    most."""
    cdef uint32_t ticket = (atomic_add(&lock.arrived, READER) - READER) & MARK
    cdef int spin
    if ticket == 0:
        return 0
    for spin in range(SPINS):
        if not rwlock_bars_reader(lock, ticket):
            return 0
        cpu_relax()
    return ticket


cdef inline void rwlock_read_wait(RwLock* lock, uint32_t ticket) noexcept nogil:
    """Sleep until the caller may read. It must not hold the interpreter's lock."""
    if ticket == 0:
        return
    pthread_mutex_lock(&lock.lock)
    atomic_add(&lock.asleep, 1)
    while rwlock_bars_reader(lock, ticket):
        pthread_cond_wait(&lock.moved, &lock.lock)
    atomic_add(&lock.asleep, -1)
    pthread_mutex_unlock(&lock.lock)


cdef inline void rwlock_read_begin(RwLock* lock) noexcept nogil:
    """Both of them. The caller must not hold the interpreter's lock."""
    rwlock_read_wait(lock, rwlock_read_try(lock))


cdef inline void rwlock_read_end(RwLock* lock) noexcept nogil:
    atomic_add(&lock.left, READER)
    rwlock_wake(lock)


# The writer --------------------------------------------------------------------------------------

cdef inline void rwlock_write_begin(RwLock* lock) noexcept nogil:
    """Wait until there is no reader, and let none begin. The caller must not hold the interpreter's
    lock."""
    cdef int spin
    lock.turn ^= 1
    lock.before = atomic_add(&lock.arrived, lock.turn) - lock.turn
    for spin in range(SPINS):
        if not rwlock_has_readers(lock):
            return
        cpu_relax()
    pthread_mutex_lock(&lock.lock)
    atomic_add(&lock.asleep, 1)
    while rwlock_has_readers(lock):
        pthread_cond_wait(&lock.moved, &lock.lock)
    atomic_add(&lock.asleep, -1)
    pthread_mutex_unlock(&lock.lock)


cdef inline void rwlock_write_end(RwLock* lock) noexcept nogil:
    atomic_add(&lock.arrived, -lock.turn)
    rwlock_wake(lock)


cdef inline void rwlock_admit_readers(void* context) noexcept nogil:
    """The writer changes nothing that readers see, for a while. For YieldPoints."""
    rwlock_write_end(<RwLock*>context)


cdef inline void rwlock_exclude_readers(void* context) noexcept nogil:
    """It goes on with what it was at. For YieldPoints."""
    rwlock_write_begin(<RwLock*>context)


cdef inline void rwlock_yield_to_readers(void* context) noexcept nogil:
    """Between two steps of the writer's work: let in who waits. For YieldPoints."""
    cdef RwLock* lock = <RwLock*>context
    if atomic_load(&lock.arrived) != lock.before + lock.turn:
        rwlock_write_end(lock)
        rwlock_write_begin(lock)
