"""One writer and several readers of one tree, natively, each answer held against a known truth.

Compiled for the tests with ThreadSanitizer, over the kernels' own declarations, so that every access
of theirs to the tree is watched. The truth is a table: what each worker holds of each chain after
each step. A reader notes which step was the last done before it asked, and which the last begun when
it had its answer: what it was told must lie within what the truth was between the two.
"""
from dynamo_router.indexer.event_index._rwlock cimport (
    RwLock,
    rwlock_destroy,
    rwlock_init,
    rwlock_read_begin,
    rwlock_read_end,
    rwlock_write_begin,
    rwlock_write_end,
    rwlock_yield_to_readers,
)
from dynamo_router.indexer.event_index._threads cimport (
    atomic_add,
    atomic_load,
    pthread_create,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
    pthread_t,
)
from dynamo_router.indexer.tree._match cimport Walk, match_chain
from dynamo_router.indexer.tree._ops cimport (
    tree_bind,
    tree_close,
    tree_intern_worker,
    tree_open,
    tree_totals,
)
from dynamo_router.indexer.tree._remove cimport clear_worker, remove_blocks
from dynamo_router.indexer.tree._store cimport store_chain
from dynamo_router.indexer.tree._tree cimport Tree
from dynamo_router.base.native._mix cimport GOLDEN, splitmix64
from dynamo_router.base.native._yield_points cimport YieldPoints
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memset

cdef enum:
    MAX_WORKERS = 64
    MAX_READERS = 8
    STEP_BLOCKS = 8   # small, so that most steps are read in the middle

cdef enum:              # what a step does
    KIND_STORE = 0
    KIND_REMOVE = 1
    KIND_CLEAR = 2
    KIND_HAND_OVER = 3  # remove a chain from one worker and store it to another, as one write

cdef struct Stress:
    bint shared                # through the index's lock; else through a plain mutex
    RwLock lock
    pthread_mutex_t mutex
    Tree* tree
    const uint64_t* local_hashes      # of all chains
    const uint64_t* external_hashes  # the same blocks; a removal may name them backwards
    const uint64_t* backwards  # the external hashes of each chain from its end
    const uint32_t* chains     # where each begins; one more: the end of the last
    uint32_t n_chains
    const uint32_t* steps      # kind, worker, chain, begin, end, other worker or direction
    uint32_t n_steps
    const uint16_t* truth      # [steps + 1][chains][workers]
    uint32_t n_workers
    uint32_t begun             # steps; atomic
    uint32_t done              # steps; atomic

cdef struct Reader:
    Stress* stress
    uint64_t seed
    uint64_t reads
    uint64_t amid              # reads while a step was in work
    uint64_t wrong             # answers that no moment of the read explains
    uint64_t torn              # a chain in hand-over that was not with exactly one worker
    uint64_t longest_wrong     # the returned longest is not the longest
    uint32_t first[6]          # of the first wrong one: done, begun, chain, worker, told, most


cdef void begin_read(Stress* s) noexcept nogil:
    if s.shared:
        rwlock_read_begin(&s.lock)
    else:
        pthread_mutex_lock(&s.mutex)


cdef void end_read(Stress* s) noexcept nogil:
    if s.shared:
        rwlock_read_end(&s.lock)
    else:
        pthread_mutex_unlock(&s.mutex)


cdef void begin_write(Stress* s) noexcept nogil:
    if s.shared:
        rwlock_write_begin(&s.lock)
    else:
        pthread_mutex_lock(&s.mutex)


cdef void end_write(Stress* s) noexcept nogil:
    if s.shared:
        rwlock_write_end(&s.lock)
    else:
        pthread_mutex_unlock(&s.mutex)


cdef void let_readers_in(void* context) noexcept nogil:
    """At a yield point."""
    cdef Stress* s = <Stress*>context
    if s.shared:
        rwlock_yield_to_readers(&s.lock)
    else:
        end_write(s)
        begin_write(s)


cdef void admit_readers(void* context) noexcept nogil:
    end_write(<Stress*>context)


cdef void exclude_readers(void* context) noexcept nogil:
    begin_write(<Stress*>context)


cdef uint32_t match_all(
    const Tree* tree, const uint64_t* local_hashes, uint32_t n, uint32_t* out, uint32_t n_out
) noexcept nogil:
    """The overlaps of all workers by their numbers; the longest."""
    cdef uint64_t active = 0    # one word: there are at most 64 workers
    cdef Walk walk
    memset(&walk, 0, sizeof(Walk))
    memset(out, 0, n_out * sizeof(uint32_t))
    walk.active = &active
    walk.bound = out
    walk.n_bound = n_out
    match_chain(tree, &walk, local_hashes, n, False)
    return walk.longest


cdef void apply_step(Stress* s, const uint32_t* step) noexcept nogil:
    cdef uint32_t chain = s.chains[step[2]]
    cdef uint32_t end_of_chain = s.chains[step[2] + 1]
    cdef uint32_t n = step[4] - step[3]
    cdef uint32_t unknown
    if step[0] == KIND_STORE:
        store_chain(s.tree, step[1], False, 0, s.external_hashes + chain, s.local_hashes + chain, step[4])
    elif step[0] == KIND_REMOVE and step[5] == 0:
        remove_blocks(s.tree, step[1], s.external_hashes + chain + step[3], n, &unknown)
    elif step[0] == KIND_REMOVE:
        remove_blocks(
            s.tree, step[1], s.backwards + chain + (end_of_chain - chain - step[4]), n, &unknown
        )
    elif step[0] == KIND_CLEAR:
        clear_worker(s.tree, step[1])
    else:
        s.tree.memory.yield_points.yield_to_readers = NULL
        remove_blocks(s.tree, step[1], s.external_hashes + chain, step[4], &unknown)
        store_chain(s.tree, step[5], False, 0, s.external_hashes + chain, s.local_hashes + chain, step[4])
        s.tree.memory.yield_points.yield_to_readers = let_readers_in


cdef void* write_all(void* argument) noexcept nogil:
    cdef Stress* s = <Stress*>argument
    cdef uint32_t i
    for i in range(s.n_steps):
        atomic_add(&s.begun, 1)
        begin_write(s)
        apply_step(s, s.steps + 6 * i)
        end_write(s)
        atomic_add(&s.done, 1)
    return NULL


cdef void check(Reader* r, uint32_t done, uint32_t begun, uint32_t chain, uint32_t* told) noexcept nogil:
    cdef Stress* s = r.stress
    cdef uint32_t w, step, least, most, held
    for w in range(s.n_workers):
        least = 0xFFFF
        most = 0
        for step in range(done, begun + 1):
            held = s.truth[(step * s.n_chains + chain) * s.n_workers + w]
            least = min(least, held)
            most = max(most, held)
        if not least <= told[w] <= most:
            if r.wrong == 0:
                r.first[:] = [done, begun, chain, w, told[w], most]
            r.wrong += 1


cdef void* read_all(void* argument) noexcept nogil:
    cdef Reader* r = <Reader*>argument
    cdef Stress* s = r.stress
    cdef uint32_t told[MAX_WORKERS]
    cdef uint32_t done = 0, begun, chain, longest, w, most, length
    while done < s.n_steps:
        r.seed += GOLDEN
        chain = <uint32_t>(splitmix64(r.seed) >> 33) % s.n_chains
        length = s.chains[chain + 1] - s.chains[chain]
        done = atomic_load(&s.done)
        begin_read(s)
        longest = match_all(s.tree, s.local_hashes + s.chains[chain], length, told, s.n_workers)
        end_read(s)
        begun = atomic_load(&s.begun)
        r.reads += 1
        r.amid += begun != done
        check(r, done, begun, chain, told)
        most = 0
        for w in range(s.n_workers):
            most = max(most, told[w])
        r.longest_wrong += most != longest
        # The last chain is always with the last worker or with the one before, once it is stored.
        if chain == s.n_chains - 1 and done != 0:
            r.torn += told[s.n_workers - 1] + told[s.n_workers - 2] != length
    return NULL


def run(
    const uint64_t[::1] local_hashes not None,
    const uint64_t[::1] external_hashes not None,
    const uint64_t[::1] backwards not None,
    const uint32_t[::1] chains not None,
    const uint32_t[::1] steps not None,
    const uint16_t[::1] truth not None,
    uint32_t n_workers,
    uint32_t n_readers,
    bint shared,
):
    """ImageRun all steps against that many readers; totals of what they saw, as a dict."""
    cdef Stress s
    cdef Reader readers[MAX_READERS]
    cdef pthread_t threads[MAX_READERS + 1]
    cdef uint32_t i
    cdef int started = 0
    if not (2 <= n_workers <= MAX_WORKERS and 1 <= n_readers <= MAX_READERS):
        raise ValueError("too few or too many workers or readers")
    memset(&s, 0, sizeof(Stress))
    memset(readers, 0, sizeof(readers))
    s.shared = shared
    rwlock_init(&s.lock)
    pthread_mutex_init(&s.mutex, NULL)
    s.tree = tree_open()
    s.local_hashes, s.external_hashes = &local_hashes[0], &external_hashes[0]
    s.backwards = &backwards[0]
    s.chains, s.n_chains = &chains[0], <uint32_t>chains.shape[0] - 1
    s.steps, s.n_steps = &steps[0], <uint32_t>steps.shape[0] // 6
    s.truth, s.n_workers = &truth[0], n_workers
    assert truth.shape[0] == (s.n_steps + 1) * s.n_chains * n_workers
    for i in range(n_workers):
        assert tree_intern_worker(s.tree, i, 0) == i
        tree_bind(s.tree, i, i)
    s.tree.memory.yield_points = YieldPoints(
        let_readers_in, admit_readers, exclude_readers, &s, STEP_BLOCKS, 0
    )
    with nogil:
        for i in range(n_readers):
            readers[i].stress = &s
            readers[i].seed = i + 1
            started += pthread_create(&threads[i], NULL, read_all, &readers[i]) == 0
        started += pthread_create(&threads[n_readers], NULL, write_all, &s) == 0
        for i in range(n_readers + 1):
            pthread_join(threads[i], NULL)
    blocks = tree_totals(s.tree).blocks
    tree_close(s.tree)
    rwlock_destroy(&s.lock)
    pthread_mutex_destroy(&s.mutex)
    return {
        "threads": started,
        "blocks": blocks,
        "reads": sum(readers[i].reads for i in range(n_readers)),
        "amid": sum(readers[i].amid for i in range(n_readers)),
        "wrong": sum(readers[i].wrong for i in range(n_readers)),
        "torn": sum(readers[i].torn for i in range(n_readers)),
        "longest_wrong": sum(readers[i].longest_wrong for i in range(n_readers)),
        "first": [list(readers[i].first) for i in range(n_readers) if readers[i].wrong],
    }
