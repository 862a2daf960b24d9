# cython: language_level=3
"""One writer and several readers of one tree, natively, each answer held against a known truth.

Compiled for the tests with ThreadSanitizer, over the kernels' own declarations, so that every access
of theirs to the tree is watched. The truth is a table: what each worker holds of each chain after
each step. A reader notes which step was the last done before it asked, and which the last begun when
it had its answer: what it was told must lie within what the truth was between the two.
"""
from dynamo_router.indexer.event_index._rwlock cimport (
    READ_EXCLUSIVE,
    READ_SHARED,
    Gate,
    gate_arrive,
    gate_close,
    gate_destroy,
    gate_enter,
    gate_give_way,
    gate_init,
    gate_leave,
    gate_open,
)
from dynamo_router.indexer.tree._lifetime cimport free_tree, make_tree
from dynamo_router.indexer.tree._match cimport match_bound
from dynamo_router.runtime.native._yield_points cimport Pace
from dynamo_router.indexer.tree._remove cimport clear_worker, remove_blocks
from dynamo_router.indexer.tree._store cimport store_chain
from dynamo_router.indexer.event_index._threads cimport (
    dr_add,
    dr_load,
    pthread_create,
    pthread_join,
    pthread_t,
)
from dynamo_router.indexer.tree._tree cimport TREE_NO_MEMORY, Tree
from dynamo_router.indexer.tree._workers cimport intern_worker
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memset

cdef enum:
    MAX_WORKERS = 64
    MAX_READERS = 8
    STEP_BLOCKS = 8   # small, so that most steps are read in the middle

# What a step does.
STORE, REMOVE, CLEAR, HAND_OVER = range(4)
cdef enum:
    KIND_STORE = 0
    KIND_REMOVE = 1
    KIND_CLEAR = 2
    KIND_HAND_OVER = 3  # remove a chain from one worker and store it to another, behind one closed gate

cdef struct Stress:
    Gate gate
    Tree* tree
    const uint64_t* local      # of all chains
    const uint64_t* ext        # the same blocks; a removal names them backwards if it likes
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


cdef void apply_step(Stress* s, const uint32_t* step) noexcept nogil:
    cdef uint32_t chain = s.chains[step[2]]
    cdef uint32_t end_of_chain = s.chains[step[2] + 1]
    cdef uint32_t n = step[4] - step[3]
    cdef uint32_t unknown
    if step[0] == KIND_STORE:
        store_chain(s.tree, step[1], False, 0, s.ext + chain, s.local + chain, step[4])
    elif step[0] == KIND_REMOVE and step[5] == 0:
        remove_blocks(s.tree, step[1], s.ext + chain + step[3], n, &unknown)
    elif step[0] == KIND_REMOVE:
        remove_blocks(
            s.tree, step[1], s.backwards + chain + (end_of_chain - chain - step[4]), n, &unknown
        )
    elif step[0] == KIND_CLEAR:
        clear_worker(s.tree, step[1])
    else:
        s.tree.memory.pace.give_way = NULL
        remove_blocks(s.tree, step[1], s.ext + chain, step[4], &unknown)
        store_chain(s.tree, step[5], False, 0, s.ext + chain, s.local + chain, step[4])
        s.tree.memory.pace.give_way = gate_give_way


cdef void* write_all(void* argument) noexcept nogil:
    cdef Stress* s = <Stress*>argument
    cdef uint32_t i
    for i in range(s.n_steps):
        dr_add(&s.begun, 1)
        gate_close(&s.gate)
        apply_step(s, s.steps + 6 * i)
        gate_open(&s.gate)
        dr_add(&s.done, 1)
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
        r.seed = r.seed * 6364136223846793005ULL + 1442695040888963407ULL
        chain = <uint32_t>(r.seed >> 33) % s.n_chains
        length = s.chains[chain + 1] - s.chains[chain]
        done = dr_load(&s.done)
        gate_enter(&s.gate, gate_arrive(&s.gate))
        longest = match_bound(s.tree, s.local + s.chains[chain], length, told, s.n_workers)
        gate_leave(&s.gate)
        begun = dr_load(&s.begun)
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
    const uint64_t[::1] local not None,
    const uint64_t[::1] ext not None,
    const uint64_t[::1] backwards not None,
    const uint32_t[::1] chains not None,
    const uint32_t[::1] steps not None,
    const uint16_t[::1] truth not None,
    uint32_t n_workers,
    uint32_t n_readers,
    bint shared,
):
    """Run all steps against that many readers; totals of what they saw, as a dict."""
    cdef Stress s
    cdef Reader readers[MAX_READERS]
    cdef pthread_t threads[MAX_READERS + 1]
    cdef uint32_t i
    cdef int started = 0
    if not (2 <= n_workers <= MAX_WORKERS and 1 <= n_readers <= MAX_READERS):
        raise ValueError("too few or too many workers or readers")
    memset(&s, 0, sizeof(Stress))
    memset(readers, 0, sizeof(readers))
    gate_init(&s.gate, READ_SHARED if shared else READ_EXCLUSIVE)
    s.tree = make_tree()
    s.local, s.ext, s.backwards = &local[0], &ext[0], &backwards[0]
    s.chains, s.n_chains = &chains[0], <uint32_t>chains.shape[0] - 1
    s.steps, s.n_steps = &steps[0], <uint32_t>steps.shape[0] // 6
    s.truth, s.n_workers = &truth[0], n_workers
    assert truth.shape[0] == (s.n_steps + 1) * s.n_chains * n_workers
    for i in range(n_workers):
        assert intern_worker(s.tree, i, 0) == i
        s.tree.numbers[i] = i
    s.tree.memory.pace = Pace(gate_give_way, &s.gate, STEP_BLOCKS, 0)
    with nogil:
        for i in range(n_readers):
            readers[i].stress = &s
            readers[i].seed = i + 1
            started += pthread_create(&threads[i], NULL, read_all, &readers[i]) == 0
        started += pthread_create(&threads[n_readers], NULL, write_all, &s) == 0
        for i in range(n_readers + 1):
            pthread_join(threads[i], NULL)
    blocks, memory = s.tree.n_blocks, s.tree.memory.bytes
    free_tree(s.tree)
    gate_destroy(&s.gate)
    return {
        "threads": started,
        "blocks": blocks,
        "memory": memory,
        "reads": sum(readers[i].reads for i in range(n_readers)),
        "amid": sum(readers[i].amid for i in range(n_readers)),
        "wrong": sum(readers[i].wrong for i in range(n_readers)),
        "torn": sum(readers[i].torn for i in range(n_readers)),
        "longest_wrong": sum(readers[i].longest_wrong for i in range(n_readers)),
        "first": [list(readers[i].first) for i in range(n_readers) if readers[i].wrong],
    }
