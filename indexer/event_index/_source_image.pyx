"""What is held, out of an index: one source with its blocks, to go into one again; and the branches
that are held most."""
from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from ..tree._arguments cimport read_worker
from ..tree._inspect cimport OverviewRow, heaviest_rows, read_overview
from ..tree._ops cimport (
    TREE_OK,
    ImageRun,
    Tree,
    WorkerImage,
    WorkerInfo,
    WorkerKey,
    tree_find_worker,
    tree_read_image,
    tree_store_image,
    tree_worker_info,
    worker_image_free,
)
from ._actor cimport IndexActor
from ._cursor cimport (
    PAST,
    SOURCE_EXACT,
    SUSPECT_RESTORED,
    EventCursor,
    PastPublishers,
    cursor_give_up,
    past_note,
)
from ._ingest cimport find_source, reset_source
from ._shared_state cimport (
    SharedState,
    start_changing,
    start_writing,
    stop_changing,
    stop_writing,
)
from ._sources cimport Source, source_forget, source_register
from ._threads cimport atomic_add
from ._tiers cimport DEVICE, tiers_drop_worker

from ..source import CursorImage


cdef bint read_source(
    SharedState* state, const WorkerKey* key, Source* source, uint64_t* missing, WorkerImage* image
) noexcept nogil:
    """An exact source without what waits, all its blocks, and how many more were dropped to keep
    the budget; false if it is not exact, or not all can be had.

    For the writer, so that no event is half done; readers need not wait.
    """
    cdef const Tree* tree = state.ingest.tiers.trees[DEVICE]
    cdef uint32_t worker = tree_find_worker(tree, key.worker_id, key.dp_rank)
    cdef WorkerInfo known
    if worker == UINT32_MAX or worker >= state.ingest.sources.count:
        return False
    known = tree_worker_info(tree, worker)
    missing[0] = known.missing
    source[0] = state.ingest.sources.all[worker]
    return (
        source.cursor.state == SOURCE_EXACT
        and not source.cursor.bare
        and tree_read_image(tree, worker, image)
        and image.n_blocks == known.blocks
    )


def dump_source(IndexActor actor not None, worker):
    """(CursorImage, unindexed, runs, external, local hashes) of an exact source's device; else None.

    The last three are bytes: ImageRun structs and uint64s. None also if a match cannot see some of
    its blocks.
    """
    cdef SharedState* state = <SharedState*>actor.state
    cdef WorkerImage image
    cdef Source source
    cdef const EventCursor* cursor = &source.cursor
    cdef uint64_t missing
    cdef WorkerKey key
    cdef bint whole
    memset(&image, 0, sizeof(WorkerImage))
    read_worker(&key, worker)
    with nogil:
        start_writing(state)
        whole = read_source(state, &key, &source, &missing, &image)
        stop_writing(state)
    try:
        if not whole:
            return None
        return (
            CursorImage(
                cursor.publisher_id,
                cursor.floor,
                cursor.sequence,
                cursor.applied_sequence,
                cursor.last_event_id,
                cursor.newest,
                cursor.fresh,
                cursor.linked,
                cursor.from_zero,
                cursor.origin,
                tuple([
                    (source.past.all[i].publisher_id, source.past.all[i].end)
                    for i in range(<uint32_t>PAST)
                    if source.past.all[i].end != 0
                ]),
            ),
            missing,
            (<char*>image.runs)[: image.n_runs * sizeof(ImageRun)],
            (<char*>image.external_hashes)[: image.n_blocks * sizeof(uint64_t)],
            (<char*>image.local_hashes)[: image.n_blocks * sizeof(uint64_t)],
        )
    finally:
        worker_image_free(&image)


cdef bint replace_source(
    SharedState* state,
    const WorkerKey* key,
    const EventCursor* cursor,
    const PastPublishers* past,
    uint64_t missing,
    const ImageRun* runs,
    size_t n_runs,
    const uint64_t* external_hashes,
    const uint64_t* local_hashes,
    size_t n,
) noexcept nogil:
    """Give a worker a cursor, and as many of the blocks as the budget allows, in place of what was
    known of it; false if they do not fit together, or there is no memory: then nothing is known of
    it but its number. Under the write lock.
    """
    cdef uint32_t worker = 0
    cdef Source* source = find_source(&state.ingest, key.worker_id, key.dp_rank, &worker)
    cdef Tree* tree = state.ingest.tiers.trees[DEVICE]
    if source == NULL:
        return False
    reset_source(&state.ingest, worker, source)
    if TREE_OK != tree_store_image(
        tree, worker, runs, n_runs, external_hashes, local_hashes, n, missing
    ):
        if tree_worker_info(tree, worker).number != UINT32_MAX:  # it is registered
            reset_source(&state.ingest, worker, source)
            cursor_give_up(&source.cursor, source.cursor.last_event_id)
        else:
            tiers_drop_worker(&state.ingest.tiers, worker)
            source_forget(&state.ingest.sources, worker)
        return False
    source_register(&state.ingest.sources, worker)
    source.cursor = cursor[0]
    source.past = past[0]
    atomic_add(&state.ingest.alarms, 1)
    return True


def restore_source(
    IndexActor actor not None,
    worker,
    cursor,
    uint64_t unindexed,
    bytes runs,
    bytes external_hashes,
    bytes local_hashes,
):
    """Take in what dump_source gave, as far as it fits; False if it does not fit together."""
    cdef SharedState* state = <SharedState*>actor.state
    cdef const ImageRun* run = <const ImageRun*><const char*>runs
    cdef const uint64_t* external = <const uint64_t*><const char*>external_hashes
    cdef const uint64_t* local = <const uint64_t*><const char*>local_hashes
    cdef size_t n_runs = <size_t>len(runs) // sizeof(ImageRun)
    cdef size_t n = <size_t>len(external_hashes) // sizeof(uint64_t)
    cdef EventCursor restored
    cdef PastPublishers past
    cdef WorkerKey key
    cdef bint good
    if <size_t>len(runs) != n_runs * sizeof(ImageRun):
        return False
    if <size_t>len(external_hashes) != n * sizeof(uint64_t):
        return False
    if len(local_hashes) != len(external_hashes):
        return False
    memset(&restored, 0, sizeof(EventCursor))
    memset(&past, 0, sizeof(PastPublishers))
    (
        restored.publisher_id,
        restored.floor,
        restored.sequence,
        restored.applied_sequence,
        restored.last_event_id,
        restored.newest,
        restored.fresh,
        restored.linked,
        restored.from_zero,
        restored.origin,
        publishers,
    ) = cursor  # what waited behind a gap is not here, and will be asked for
    for publisher_id, end in publishers:
        past_note(&past, publisher_id, end)
    restored.state = SOURCE_EXACT
    restored.suspect = SUSPECT_RESTORED
    read_worker(&key, worker)
    with nogil:
        start_changing(state, NULL)
        good = replace_source(
            state, &key, &restored, &past, unindexed, run, n_runs, external, local, n
        )
        stop_changing(state)
    return good


def list_heaviest(IndexActor actor not None, uint32_t looked_at, uint32_t limit):
    """The `limit` heaviest of `looked_at` edges; see heaviest_rows in ../tree/_inspect.pxd.

    For the writer, so that no event is half done; readers need not wait.
    """
    cdef SharedState* state = <SharedState*>actor.state
    cdef uint32_t count
    cdef OverviewRow* rows = <OverviewRow*>malloc(
        (<size_t>looked_at + 1) * sizeof(OverviewRow)
    )
    if rows == NULL:
        raise MemoryError
    try:
        with nogil:
            start_writing(state)
            count = read_overview(state.ingest.tiers.trees[DEVICE], rows, looked_at)
            stop_writing(state)
        return heaviest_rows(rows, count, limit)
    finally:
        free(rows)
