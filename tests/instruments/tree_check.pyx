"""The tree looked at from inside, for tests: its invariants.

Built by tests/instruments/build.py over the kernels' own declarations; no part of the package.
"""
from dynamo_router.indexer.tree._arena cimport arena_bin
from dynamo_router.indexer.tree._canonical_hashes cimport find_canonical
from dynamo_router.indexer.tree._edge cimport (
    FEW,
    edge_coverage,
    edge_deepest,
    edge_is_full,
    popcount64,
    span_capacity,
)
from dynamo_router.indexer.tree._external_hashes cimport (
    alias_by_block,
    alias_by_external_hash,
    external_hash_of,
    find_held,
)
from dynamo_router.indexer.tree._ops cimport tree_find_worker
from dynamo_router.indexer.tree._radix cimport RadixTree
from dynamo_router.indexer.tree._shape cimport find_child
from dynamo_router.indexer.tree._tree cimport (
    ARENA_BINS,
    ROOT,
    SHADOWS,
    Alias,
    Aliases,
    Arena,
    Edge,
    Tree,
    Worker,
)
from dynamo_router.base.native._table cimport NONE, Table, table_seek
from libc.stdint cimport uint32_t, uint64_t


def check_integrity(RadixTree tree not None):
    """Raise AssertionError if any invariant of the structure does not hold."""
    cdef Tree* t = tree.tree
    cdef size_t coverage_bytes = check_edges(t)
    check_arena(t)
    check_external_hashes(t)
    worker_bytes = check_workers(t)
    check_table(&t.by_external_hash)
    check_table(&t.children)
    check_table(&t.by_worker_id)
    if t.memory.fail_after < 0:
        held = (
            coverage_bytes
            + (t.blocks.capacities[0] + t.blocks.capacities[1]) * 8
            + t.blocks.capacities[2] * 4
            + t.edges_capacity * sizeof(Edge)
            + t.workers_capacity * sizeof(Worker)
            + t.numbers_capacity * sizeof(uint32_t)
            + worker_bytes
        )
        held += bytes_of(&t.by_external_hash) + bytes_of(&t.children) + bytes_of(&t.by_worker_id)
        expect(held == t.memory.bytes, f"{t.memory.bytes} bytes counted, {held} held")


cdef object expect(bint holds, what):
    if not holds:
        raise AssertionError(what)


cdef size_t bytes_of(const Table* table):
    return 0 if table.slots == NULL else (table.mask + 1) * 8


cdef object check_table(const Table* table):
    """Every entry is reached from its home, and they are counted."""
    cdef uint64_t at, slot, step
    cdef uint32_t found, hashed
    count = 0
    if table.slots == NULL:
        expect(table.count == 0, "entries without slots")
        return
    for at in range(table.mask + 1):
        slot = table.slots[at]
        if slot == 0:
            continue
        count += 1
        hashed = <uint32_t>(slot >> 32)
        step = 0
        while True:
            found = table_seek(table, hashed, &step)
            expect(found != NONE, "an entry cannot be reached")
            if found == <uint32_t>slot - 1:
                break
    expect(count == table.count, "entries of a table miscounted")
    expect(count * 5 <= (table.mask + 1) * 4, "a table is too full")


cdef size_t check_edges(Tree* t) except? 0:
    """Shape and coverage; returns the bytes that coverage takes."""
    cdef const Edge* edge
    cdef uint32_t child, before, e, i
    cdef size_t held = 0
    cdef uint64_t blocks = 0
    seen = set()
    queue = [ROOT]
    for number in queue:
        e = number
        edge = &t.edges[e]
        expect(e not in seen, "an edge has two places")
        seen.add(e)
        if e == ROOT:
            expect(edge.len == 0 and edge.n_full == 0 and edge.n_partial == 0, "a root is empty")
        else:
            blocks += edge.len
            expect(0 < edge.len <= edge.cap, "an edge without blocks, or beyond its range")
            expect(
                find_child(t, edge.parent, t.blocks.local_hash[edge.start]) == e,
                "a child is not found",
            )
            for i in range(edge.start, edge.start + edge.len):
                expect(t.blocks.owner[i] == e, "a block names another edge")
            held += check_coverage(t, edge)
            expect(edge.flags | SHADOWS == SHADOWS, "a flag that lasts too long")
            if edge.first_child == NONE:
                expect(
                    edge_deepest(edge) == edge.len or t.memory.fail_after >= 0,
                    "a tail nobody covers",
                )
        before = NONE
        child = edge.first_child
        while child != NONE:
            expect(t.edges[child].parent == e, "a child names another parent")
            expect(t.edges[child].prev == before, "siblings disagree")
            queue.append(child)
            before = child
            child = t.edges[child].next
    expect(len(seen) == t.n_edges, "edges miscounted")
    check_free_edges(t, seen)
    expect(t.children.count == t.n_edges - 1, "the table of children has others")
    expect(blocks == t.n_blocks, "blocks miscounted")
    return held


cdef object check_free_edges(Tree* t, seen):
    """Every entry that is no edge is in the list of those, once."""
    cdef uint32_t e = t.edges_free
    cdef uint32_t before = NONE
    free_edges = set()
    while e != NONE:
        expect(e not in seen and e not in free_edges, "an edge in use is listed as free")
        expect(
            t.edges[e].prev == before and t.edges[e].len == 0, "the list of free edges is broken"
        )
        free_edges.add(e)
        before = e
        e = t.edges[e].next
    expect(len(seen) + len(free_edges) == t.edges_used <= t.edges_capacity, "edges are lost")


cdef size_t check_coverage(Tree* t, const Edge* edge) except? 0:
    cdef uint32_t i, w, full = 0
    seen = set()
    if edge.n_words:
        for i in range(edge.n_words):
            full += popcount64(edge.full.words[i])
        expect(full == edge.n_full > FEW // 2, "a bitset is miscounted, or too small to be one")
    else:
        expect(edge.n_full <= FEW, "too many workers in position_behind")
        for i in range(edge.n_full):
            expect(edge.full.few[i] not in seen, "a worker is in position_behind twice")
            seen.add(edge.full.few[i])
        seen.clear()
    for i in range(edge.n_partial):
        w = edge.partial[i].worker
        expect(w not in seen and not edge_is_full(edge, w), "a worker covers twice")
        expect(0 < edge.partial[i].blocks < edge.len, "a partial coverage is not partial")
        seen.add(w)
    for i in range(t.workers_used):
        expect(edge_coverage(edge, i) == 0 or t.workers[i].live, "a stranger covers")
    return edge.n_words * 8 + span_capacity(edge.n_partial) * 8


cdef object check_arena(Tree* t):
    """Edges and free ranges tile the used positions; every free range is in its list."""
    cdef Arena* arena = &t.blocks
    cdef uint32_t e, b, at, before, size
    cdef uint64_t free_blocks = 0
    ranges = []
    for e in range(1, t.edges_used):
        if t.edges[e].len:
            ranges.append((t.edges[e].start, t.edges[e].cap, False))
            last = t.edges[e].start + t.edges[e].cap - 1
            expect(arena.owner[last] == e, "the end of a range names another edge")
    for b in range(ARENA_BINS):
        at = arena.bins[b]
        before = NONE
        expect((at != NONE) == ((arena.filled[b >> 6] >> (b & 63)) & 1), "a list is mismarked")
        while at != NONE:
            size = <uint32_t>arena.local_hash[at]
            expect(arena_bin(size) == b, "a free range in the wrong list")
            expect(arena.local_hash[at + size - 1] == size, "the ends of a free range disagree")
            expect(arena.owner[at] == NONE == arena.owner[at + size - 1], "a free range is owned")
            expect(
                <uint32_t>(arena.external_hash[at] >> 32) == before,
                "a list of free ranges is broken",
            )
            ranges.append((at, size, True))
            free_blocks += size
            before = at
            at = <uint32_t>arena.external_hash[at]
    end = 0
    was_free = False
    for start, length, is_free in sorted(ranges):
        expect(start == end, "positions are lost or owned twice")
        expect(not (is_free and was_free), "free neighbours are not joined")
        end, was_free = start + length, is_free
    expect(end == arena.used <= arena.capacity and not was_free, "the arena ends elsewhere")
    expect(free_blocks == arena.free_blocks, "free blocks miscounted")


cdef object check_external_hashes(Tree* t):
    """Every held block is found under its worker's hash, and nothing else is."""
    cdef const Edge* edge
    cdef uint32_t e, i, w
    cdef uint64_t external_hash, shadowed = 0
    by_worker = {}
    for e in range(1, t.edges_used):
        edge = &t.edges[e]
        for i in range(edge.start, edge.start + edge.len):
            if find_canonical(t, t.blocks.external_hash[i]) != i:
                shadowed += 1
                expect(edge.flags & SHADOWS, "an edge hides a shadowed block")
        for w in range(t.workers_used):
            for i in range(edge.start, edge.start + edge_coverage(edge, w)):
                external_hash = external_hash_of(t, w, i)
                expect(find_held(t, w, external_hash) == i, "a held block is not found")
                by_worker.setdefault(w, []).append(external_hash)
    for w, hashes in by_worker.items():
        expect(len(hashes) == len(set(hashes)), "a worker has a hash twice")
    for w in range(t.workers_used):
        expect(len(by_worker.get(w, ())) == t.workers[w].blocks, "a worker's blocks miscounted")
    expect(shadowed == t.shadowed, "shadowed blocks miscounted")
    expect(
        t.by_external_hash.count == t.n_blocks - shadowed + t.stale,
        "the table of hashes has others",
    )


cdef size_t check_workers(Tree* t) except? 0:
    """Who there is, with aliases and lists of edges; returns the bytes that those take."""
    cdef uint32_t w, live = 0
    cdef size_t held = 0
    cdef uint64_t aliases = 0
    for w in range(t.workers_used):
        if t.workers[w].live:
            live += 1
            found = tree_find_worker(t, t.workers[w].worker_id, t.workers[w].dp_rank)
            expect(found == w, "a worker is not found by its id")
        held += t.workers[w].edges_capacity * sizeof(uint32_t)
        if t.workers[w].aliases != NULL:
            held += check_aliases(t, w)
            aliases += t.workers[w].aliases.used
        check_list(t, w)
    expect(live == t.n_workers == t.by_worker_id.count, "workers miscounted")
    check_vacant_numbers(t)
    expect(aliases == t.n_aliases, "aliases miscounted")
    return held


cdef object check_vacant_numbers(Tree* t):
    """Every number below the highest in use that nobody has is in the list of them, once."""
    cdef uint32_t w = t.workers_free, before = NONE, vacant = 0
    expect(t.workers_used == 0 or t.workers[t.workers_used - 1].live, "the end is vacant")
    while w != NONE:
        expect(w < t.workers_used and not t.workers[w].live, "a number is not vacant")
        expect(t.workers[w].prev_vacant == before, "the list of vacant numbers is broken")
        before, w = w, t.workers[w].next_vacant
        vacant += 1
    expect(vacant == t.workers_used - t.n_workers, "a vacant number is lost")


cdef size_t check_aliases(Tree* t, uint32_t w) except 0:
    """Every alias of a worker is of a block that it covers, and found; returns their bytes."""
    cdef const Aliases* aliases = t.workers[w].aliases
    cdef const Alias* alias
    cdef const Edge* edge
    for i in range(aliases.used):
        alias = &aliases.all[<uint32_t>i]
        expect(alias_by_external_hash(aliases, alias.external_hash) == i, "an alias is lost")
        expect(alias_by_block(aliases, alias.block) == i, "an alias is lost")
        expect(alias.block < t.blocks.used, "an alias of no block")
        edge = &t.edges[t.blocks.owner[alias.block]]
        expect(alias.block - edge.start < edge_coverage(edge, w), "an alias of no holder")
    expect(aliases.by_external_hash.count == aliases.used == aliases.by_block.count, "miscounted")
    check_table(&aliases.by_external_hash)
    check_table(&aliases.by_block)
    held = bytes_of(&aliases.by_external_hash) + bytes_of(&aliases.by_block)
    return sizeof(Aliases) + aliases.capacity * sizeof(Alias) + held


cdef object check_list(Tree* t, uint32_t w):
    """A worker's list has every edge that it covers, and is not much longer than need be."""
    cdef const Worker* holder = &t.workers[w]
    cdef uint32_t e
    if holder.unlisted:
        return
    listed = {holder.edges[i] for i in range(holder.edges_used)}
    for e in range(1, t.edges_used):
        expect(edge_coverage(&t.edges[e], w) == 0 or e in listed, "an edge is not listed")
    expect(holder.edges_used <= 4 * holder.blocks + 68, "a list is too long")
