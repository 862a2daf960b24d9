# _gate.pxd: who is in the tree now: readers, or the one writer. Modelled in tests/model_gate.py.
#
# Shared, it is the phase-fair ticket lock of Brandenburg and Anderson ("Spin-based reader-writer
# synchronization for multiprocessor real-time systems", Real-Time Systems 46, 2010) for one writer.
# A reader counts itself in, and waits only if the writer had its mark up at that moment, until that
# mark is gone: for one turn of the writer at most, even if the writer is back at once. The writer
# waits for the readers that came before its mark, and for none that came after. So neither can
# starve the other. Exclusive, it is a mutex: one reader at a time, and waiting for it is sleeping.
#
# Whoever is inside waits for nothing, least of all for the interpreter: those outside may hold it.
# All orders are sequentially consistent: a thread that goes to sleep and one that would have to wake
# it must not both miss the other.
from libc.stdint cimport uint32_t

from ._threads cimport (
    dr_add,
    dr_load,
    dr_relax,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_t,
    pthread_cond_wait,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_trylock,
    pthread_mutex_unlock,
    sched_yield,
)

cdef enum:
    MARK = 3            # the bits of `arrived` that are the writer's
    WRITING = 2         # one of them; the other tells one turn from the next
    READER = 4          # one reader, in `arrived` and `left`
    SPINS = 500         # looks before sleep: longer than a step of work takes, if all are running
    YIELDS = 1000       # turns of the processor that an exclusive writer offers to waiting readers

cdef enum ReadPath:
    READ_SHARED = 0
    READ_EXCLUSIVE = 1

cdef struct Gate:
    uint32_t arrived        # READER for each reader that ever came, and the writer's mark; atomic
    char apart[60]          # readers leave on another cache line than they come in on
    uint32_t left           # READER for each reader that ever left; atomic
    uint32_t asleep         # threads that sleep until something moves; atomic
    uint32_t turn           # the writer's own: the mark of its turn
    uint32_t before         # the writer's own: `arrived` when it put that up, the mark left out
    pthread_mutex_t lock    # guards falling asleep
    pthread_cond_t moved
    ReadPath path
    pthread_mutex_t inside  # exclusive: held by who is inside
    uint32_t waiting        # exclusive: readers that wait for it; atomic


cdef inline void gate_init(Gate* gate, ReadPath path) noexcept nogil:
    """Of a zeroed struct."""
    gate.path = path
    gate.turn = WRITING
    pthread_mutex_init(&gate.lock, NULL)
    pthread_cond_init(&gate.moved, NULL)
    pthread_mutex_init(&gate.inside, NULL)


cdef inline void gate_destroy(Gate* gate) noexcept nogil:
    pthread_mutex_destroy(&gate.inside)
    pthread_cond_destroy(&gate.moved)
    pthread_mutex_destroy(&gate.lock)


cdef inline bint barred(Gate* gate, uint32_t ticket) noexcept nogil:
    """Whether the turn of the writer that a reader met still lasts."""
    return (dr_load(&gate.arrived) & MARK) == ticket


cdef inline bint occupied(Gate* gate) noexcept nogil:
    """Whether readers that came before the writer's mark are still inside."""
    return dr_load(&gate.left) != gate.before


cdef inline void wake(Gate* gate) noexcept nogil:
    """Something moved: whoever sleeps shall look again."""
    if dr_load(&gate.asleep) != 0:
        pthread_mutex_lock(&gate.lock)
        pthread_cond_broadcast(&gate.moved)
        pthread_mutex_unlock(&gate.lock)


# Readers -----------------------------------------------------------------------------------------

cdef inline uint32_t gate_arrive(Gate* gate) noexcept nogil:
    """Come to read. 0: one is inside; else a ticket to wait with. Takes microseconds at most."""
    cdef uint32_t ticket
    cdef int spin
    if gate.path == READ_EXCLUSIVE:
        return 0 if pthread_mutex_trylock(&gate.inside) == 0 else 1
    ticket = (dr_add(&gate.arrived, READER) - READER) & MARK
    if ticket == 0:
        return 0
    for spin in range(SPINS):
        if not barred(gate, ticket):
            return 0
        dr_relax()
    return ticket


cdef inline void gate_enter(Gate* gate, uint32_t ticket) noexcept nogil:
    """Wait until one is inside. Not for who holds the interpreter."""
    if ticket == 0:
        return
    if gate.path == READ_EXCLUSIVE:
        dr_add(&gate.waiting, 1)
        pthread_mutex_lock(&gate.inside)
        dr_add(&gate.waiting, -1)
        return
    pthread_mutex_lock(&gate.lock)
    dr_add(&gate.asleep, 1)
    while barred(gate, ticket):
        pthread_cond_wait(&gate.moved, &gate.lock)
    dr_add(&gate.asleep, -1)
    pthread_mutex_unlock(&gate.lock)


cdef inline void gate_leave(Gate* gate) noexcept nogil:
    if gate.path == READ_EXCLUSIVE:
        pthread_mutex_unlock(&gate.inside)
    else:
        dr_add(&gate.left, READER)
        wake(gate)


# The writer --------------------------------------------------------------------------------------

cdef inline void gate_close(Gate* gate) noexcept nogil:
    """Return when no reader is inside, and none can come in. Not for who holds the interpreter."""
    cdef int spin
    if gate.path == READ_EXCLUSIVE:
        pthread_mutex_lock(&gate.inside)
        return
    gate.turn ^= 1
    gate.before = dr_add(&gate.arrived, gate.turn) - gate.turn
    for spin in range(SPINS):
        if not occupied(gate):
            return
        dr_relax()
    pthread_mutex_lock(&gate.lock)
    dr_add(&gate.asleep, 1)
    while occupied(gate):
        pthread_cond_wait(&gate.moved, &gate.lock)
    dr_add(&gate.asleep, -1)
    pthread_mutex_unlock(&gate.lock)


cdef inline void gate_open(Gate* gate) noexcept nogil:
    """Let readers in."""
    if gate.path == READ_EXCLUSIVE:
        pthread_mutex_unlock(&gate.inside)
    else:
        dr_add(&gate.arrived, -gate.turn)
        wake(gate)


cdef inline void gate_give_way(void* gate_) noexcept nogil:
    """Between two steps of one writer's work: let in who waits. A Pace's give_way."""
    cdef Gate* gate = <Gate*>gate_
    cdef int turn
    if gate.path == READ_EXCLUSIVE:
        if dr_load(&gate.waiting) == 0:
            return
        pthread_mutex_unlock(&gate.inside)
        for turn in range(YIELDS):
            if dr_load(&gate.waiting) == 0:
                break
            sched_yield()
        pthread_mutex_lock(&gate.inside)
    elif dr_load(&gate.arrived) != gate.before + gate.turn:
        gate_open(gate)
        gate_close(gate)
