"""Where an event stands in its source's numbering. Pure.

One cursor per (worker, rank). A source is one publisher process: it numbers its events from 1 (or
0), growing by one, and its envelopes by a sequence of their own; both grow together, and what is
sent again is sent under its old numbers.

Events behind a gap wait until the gap is filled or given up. Meanwhile the index claims what was
true at last_event_id, as if the event plane were slow. Nothing of a waiting event is applied before
its turn, not even a removal: an event that is still missing may store blocks below those that it
removes.
"""
from libc.stdint cimport uint8_t, uint64_t


cdef enum SourceState:
    SOURCE_SILENT = 0      # no event yet
    SOURCE_EXACT = 1       # every event since its start, or its last clear, until last_event_id
    SOURCE_REBUILDING = 2  # something was missed: what is indexed is right but may be incomplete
    SOURCE_DEGRADED = 3    # as rebuilding, and it does not answer when asked to announce itself


cdef enum Suspicion:       # of an exact source, until it says more
    SUSPECT_NOT = 0
    SUSPECT_DEAF = 1       # we were deaf for a while
    SUSPECT_RESTORED = 2   # what we know of it was read from a file


cdef enum Verdict:         # bits
    VERDICT_IGNORE = 0     # already applied, or of a numbering that is over
    VERDICT_APPLY = 1      # it is the next event
    VERDICT_PARK = 2       # it is behind a gap: into the reorder buffer
    VERDICT_RESET = 4      # before that: forget all that this source said, waiting events too
    VERDICT_GIVE_UP = 8    # a gap that nobody will fill: see cursor_give_up


cdef struct EventCursor:
    uint64_t publisher_id   # who is believed
    uint64_t floor          # sequences below belong to an older numbering of the same publisher
    uint64_t sequence       # the highest seen
    uint64_t last_event_id  # applied, and all before it
    uint64_t newest         # the highest id known of: above last_event_id a gap is open
    uint64_t previous_publisher  # the one before
    uint64_t previous_end   # ids of it below this are known; 0: there was none
    uint64_t gaps           # times events were missing
    uint64_t given_up       # gaps that were not filled
    uint64_t restarts       # times the source began anew
    uint64_t duplicates     # events ignored because they were known
    uint64_t orphans        # stored events whose parent was not known
    uint64_t applied        # events applied
    uint64_t heard          # events and heartbeats of any kind
    uint64_t beats          # heartbeats: it speaks the recovery protocol
    uint8_t state           # SourceState
    uint8_t suspect         # Suspicion
    uint8_t fresh           # of this numbering nothing was applied yet


cdef inline bint cursor_has_gap(const EventCursor* c) noexcept nogil:
    """Whether an event is known of that was not applied, nor any after it."""
    return c.newest > c.last_event_id


cdef inline void cursor_begin(EventCursor* c, uint64_t publisher_id, uint64_t floor) noexcept nogil:
    """Believe a numbering of which nothing is known yet: so far, nothing was missed."""
    c.publisher_id = publisher_id
    c.floor = floor
    c.sequence = c.last_event_id = c.newest = 0
    c.state = SOURCE_EXACT
    c.suspect = SUSPECT_NOT
    c.fresh = 1


cdef inline void cursor_restart(
    EventCursor* c, uint64_t publisher_id, uint64_t floor
) noexcept nogil:
    """Believe another numbering from now on: the source began anew."""
    if publisher_id != c.publisher_id:
        c.previous_publisher = c.publisher_id
        c.previous_end = c.newest + 1
    c.restarts += 1
    cursor_begin(c, publisher_id, floor)


cdef inline void cursor_note(EventCursor* c, uint64_t sequence, uint64_t event_id) noexcept nogil:
    """An event of this number exists."""
    if event_id > c.newest:
        c.newest = event_id
    if sequence > c.sequence:
        c.sequence = sequence


cdef inline int cursor_admit(
    EventCursor* c,
    uint64_t publisher_id,
    uint64_t sequence,
    uint64_t event_id,
    bint is_clear,
    bint buffer_gaps,
) noexcept nogil:
    """Say what to do with an event, and move the cursor as if that were done.

    `buffer_gaps`: somebody asks for missing events, so that others may wait for them.
    """
    cdef int reset = 0
    cdef bint in_line
    c.heard += 1
    if c.state == SOURCE_SILENT:
        cursor_begin(c, publisher_id, 0)
    elif publisher_id != c.publisher_id:
        if publisher_id == c.previous_publisher and event_id < c.previous_end:
            c.duplicates += 1
            return VERDICT_IGNORE
        cursor_restart(c, publisher_id, 0)
        reset = VERDICT_RESET
    elif sequence < c.floor or (sequence < c.sequence and event_id > c.newest):
        c.duplicates += 1
        return VERDICT_IGNORE
    elif sequence > c.sequence and event_id <= c.newest:
        # Sent later, numbered lower: the engine behind the publisher restarted.
        cursor_restart(c, publisher_id, c.sequence + 1)
        reset = VERDICT_RESET
    in_line = event_id == c.last_event_id + 1 or (c.fresh and event_id <= 1)
    if event_id <= c.last_event_id and not in_line:
        c.duplicates += 1
        return VERDICT_IGNORE
    if not in_line and not cursor_has_gap(c) and not c.fresh:
        c.gaps += 1
    c.suspect = SUSPECT_NOT
    if is_clear:
        c.state = SOURCE_EXACT  # whatever came before it does not matter any more
    elif not in_line:
        if buffer_gaps and c.state == SOURCE_EXACT:
            cursor_note(c, sequence, event_id)
            return VERDICT_PARK | reset
        # A lost removal would leave blocks that are gone: claim nothing rather than too much.
        reset = VERDICT_RESET
        if c.state == SOURCE_EXACT:
            c.state = SOURCE_REBUILDING
    cursor_note(c, sequence, event_id)
    c.last_event_id = event_id
    c.fresh = 0
    return VERDICT_APPLY | reset


cdef inline int cursor_heartbeat(
    EventCursor* c,
    uint64_t publisher_id,
    uint64_t sequence,
    uint64_t last_event_id,
    bint buffer_gaps,
) noexcept nogil:
    """The source says what its last event was, and the sequence of that one's envelope."""
    cdef int verdict = VERDICT_IGNORE
    c.heard += 1
    c.beats += 1
    if c.state == SOURCE_SILENT:
        cursor_begin(c, publisher_id, 0)
    elif publisher_id != c.publisher_id:
        # Unlike a stray event this says who is alive.
        cursor_restart(c, publisher_id, 0)
        verdict = VERDICT_RESET
    elif sequence < c.sequence:
        return VERDICT_IGNORE  # overtaken by an event
    elif sequence > c.sequence and last_event_id <= c.newest:
        cursor_restart(c, publisher_id, c.sequence + 1)
        verdict = VERDICT_RESET
    if last_event_id > c.newest and not cursor_has_gap(c) and not c.fresh:
        c.gaps += 1
    cursor_note(c, sequence, last_event_id)
    c.suspect = SUSPECT_NOT
    if cursor_has_gap(c) and not (buffer_gaps and c.state == SOURCE_EXACT):
        verdict |= VERDICT_GIVE_UP
    return verdict


cdef inline void cursor_give_up(EventCursor* c, uint64_t last_event_id) noexcept nogil:
    """Everything up to an event counts as lost, unless it was applied; the blocks are forgotten."""
    c.last_event_id = last_event_id
    c.fresh = 0
    c.suspect = SUSPECT_NOT
    c.given_up += 1
    if c.state == SOURCE_EXACT:
        c.state = SOURCE_REBUILDING


cdef inline void cursor_orphan(EventCursor* c) noexcept nogil:
    """A stored event named a parent that is not held: something was missed."""
    c.orphans += 1
    if c.state == SOURCE_EXACT:
        c.state = SOURCE_REBUILDING
