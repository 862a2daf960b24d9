# cython: language_level=3
"""_transfer.pyx: one source with its blocks out of an index, and into one. Called by actor.py."""
from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t
from libc.string cimport memset

from ._actor cimport IndexActor
from ._shared_state cimport Core, start_changing, start_writing, stop_changing, stop_writing
from ._cursor cimport SOURCE_EXACT, SUSPECT_RESTORED, Cursor
from ._ingest cimport find_source, reset_source
from ..tree._ops cimport Name, tree_find_worker
from ..tree._radix cimport read_name
from ._worker_image cimport Run, Section, section_free, section_gather, section_store
from ._sources cimport Source, source_forget
from ._threads cimport dr_add
from ._tiers cimport DEVICE, tiers_drop_worker
from ..tree._tree cimport Tree

from ..source import CursorImage


cdef bint gather(Core* core, const Name* name, Cursor* cursor, Section* section) noexcept nogil:
    """An exact source's cursor and all its blocks; false if it is not, or not all can be had.

    For the writer, so that no event is half done; whoever reads is not kept waiting.
    """
    cdef const Tree* tree = core.ingest.tiers.trees[DEVICE]
    cdef uint32_t worker = tree_find_worker(tree, name.worker_id, name.dp_rank)
    if worker == UINT32_MAX or worker >= core.ingest.sources.count:
        return False
    cursor[0] = core.ingest.sources.all[worker].cursor
    return (
        cursor.state == SOURCE_EXACT
        and section_gather(section, tree, worker)
        and section.n_blocks == tree.workers[worker].blocks
    )


def dump_source(IndexActor actor not None, worker):
    """(CursorImage, runs, external, local hashes) of an exact source's device; else None.

    The three are bytes: see Section. None also if some of its blocks are out of sight.
    """
    cdef Section section
    cdef Cursor cursor
    cdef Name name
    cdef bint whole
    memset(&section, 0, sizeof(section))
    read_name(&name, worker)
    with nogil:
        start_writing(actor.core)
        whole = gather(actor.core, &name, &cursor, &section)
        stop_writing(actor.core)
    try:
        if not whole:
            return None
        image = CursorImage(
            cursor.publisher_id,
            cursor.floor,
            cursor.sequence,
            cursor.last_event_id,
            cursor.newest,
            cursor.previous_publisher,
            cursor.previous_end,
            cursor.fresh,
        )
        return (
            image,
            (<char*>section.runs)[: section.n_runs * sizeof(Run)],
            (<char*>section.ext)[: section.n_blocks * 8],
            (<char*>section.local)[: section.n_blocks * 8],
        )
    finally:
        section_free(&section)


cdef bint settle(
    Core* core,
    const Name* name,
    const Cursor* cursor,
    const Run* runs,
    size_t n_runs,
    const uint64_t* ext,
    const uint64_t* local,
    size_t n,
) noexcept nogil:
    """Give a worker a cursor and blocks in place of what was known of it; false if they do not fit
    together, or there is no room: then nothing is known of it. Behind the closed gate.
    """
    cdef uint32_t worker = 0
    cdef Source* source = find_source(&core.ingest, name.worker_id, name.dp_rank, &worker)
    cdef Tree* tree = core.ingest.tiers.trees[DEVICE]
    if source == NULL:
        return False
    reset_source(&core.ingest, worker, source)
    if section_store(tree, worker, runs, n_runs, ext, local, n) != 0:
        tiers_drop_worker(&core.ingest.tiers, worker)
        source_forget(&core.ingest.sources, worker)
        return False
    source.cursor = cursor[0]
    dr_add(&core.ingest.alarms, 1)
    return True


def restore_source(IndexActor actor not None, worker, cursor, bytes runs, bytes ext, bytes local):
    """Take in what dump_source gave; False if it does not fit together, or there is no room."""
    cdef const Run* run = <const Run*><const char*>runs
    cdef const uint64_t* blocks = <const uint64_t*><const char*>ext
    cdef const uint64_t* locals_ = <const uint64_t*><const char*>local
    cdef size_t n_runs = len(runs) // sizeof(Run)
    cdef size_t n = len(ext) // 8
    cdef Cursor restored
    cdef Name name
    cdef bint good
    if len(runs) % sizeof(Run) or len(ext) % 8 or len(local) != len(ext):
        return False
    memset(&restored, 0, sizeof(restored))
    (
        restored.publisher_id,
        restored.floor,
        restored.sequence,
        restored.last_event_id,
        restored.newest,
        restored.previous_publisher,
        restored.previous_end,
        fresh,
    ) = cursor  # what was held back is not here, and will be asked for
    restored.fresh = bool(fresh)
    restored.state = SOURCE_EXACT
    restored.suspect = SUSPECT_RESTORED
    read_name(&name, worker)
    with nogil:
        start_changing(actor.core, NULL)
        good = settle(actor.core, &name, &restored, run, n_runs, blocks, locals_, n)
        stop_changing(actor.core)
    return good
