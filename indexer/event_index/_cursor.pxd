"""Where an event stands in its source's numbering. Pure.

One cursor per (worker, rank). A source is one publisher: it numbers its events from 1 (or 0),
growing by one, and its envelopes by a sequence of its own, from 0; both grow together, each
envelope has an event of this source, and what is sent again is sent under its old numbers. So from
one event to another of the same numbering, ids grow at least as much as sequences. Where they do
not, the engine behind the publisher restarted between the two, whatever else came: the one in
the later envelope belongs to a later numbering. Sequences may wrap around.

Bare events have no envelope, and so neither publisher nor sequence. An id that goes back is then the
only sign of a restart, and a restart may show no sign at all: such a source is never exact, though
its cursor moves as if it were.

Events behind a gap wait until the gap is filled or given up. Meanwhile the index claims what was
true at last_event_id, as if the event plane were slow. Nothing of a waiting event is applied before
its turn, not even a removal: an event that is still missing may store blocks below those that it
removes.
"""
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef enum:
    PAST = 4               # publishers before the present one that are known

cdef extern from * nogil:
    """
    #define DR_FAR ((uint64_t)1 << 62)
    """
    const uint64_t FAR "DR_FAR"  # sequences further apart than any two of one publisher


cdef enum Origin:          # of a numbering
    ORIGIN_SILENT = 0     # nothing came from it yet
    ORIGIN_NEW = 1         # its publisher is new to us, and its sequences have no floor
    ORIGIN_IN_PLACE = 2    # it began behind a publisher that went on


cdef enum SourceState:
    SOURCE_SILENT = 0      # no event yet
    SOURCE_EXACT = 1       # every event since its start, or its last clear, until last_event_id
    SOURCE_REBUILDING = 2  # something was missed: what is indexed is right but may be incomplete
    SOURCE_DEGRADED = 3    # as rebuilding, and it does not answer when asked to announce itself


cdef enum Suspicion:       # of an exact source, until it says more
    SUSPECT_NOT = 0
    SUSPECT_DEAF = 1       # we were deaf for a while
    SUSPECT_RESTORED = 2   # what we know of it was read from a file


cdef enum Place:           # of an event or heartbeat, beside what is known of the present numbering
    PLACE_SAME = 0         # nothing speaks against its being of the same numbering
    PLACE_OLDER = 1        # it is of an older numbering
    PLACE_OUTDATED = 2     # so it is, but later than the last event applied: that one is, too
    PLACE_NEWER = 3        # of a newer numbering than the last event applied, as the newest one is
    PLACE_NEWEST = 4       # of a newer numbering than all that is known


cdef enum Verdict:         # bits
    VERDICT_IGNORE = 0     # already applied, or of a numbering that is over
    VERDICT_APPLY = 1      # it is the next event
    VERDICT_PARK = 2       # it is behind a gap: into the reorder buffer
    VERDICT_RESET = 4      # before that: forget all events of this source, waiting ones too
    VERDICT_GIVE_UP = 8    # a gap that will not be filled: see cursor_give_up


cdef struct PastPublisher:
    uint64_t publisher_id
    uint64_t end            # ids of it below this are known; 0: there was none


cdef struct PastPublishers:
    PastPublisher all[4]    # no publisher twice
    uint8_t oldest          # the one that is forgotten next


cdef struct EventCursor:
    uint64_t publisher_id   # who is believed
    uint64_t floor          # sequences before it belong to an older numbering of the same publisher
    uint64_t sequence       # the latest seen: that of the event `newest`
    uint64_t applied_sequence  # of the last event applied; meaningful when `linked`
    uint64_t last_event_id  # applied, and all before it
    uint64_t newest         # the highest id known of: above last_event_id a gap is open
    uint64_t gaps           # times events were missing
    uint64_t given_up       # gaps that were not filled
    uint64_t restarts       # times the source began anew
    uint64_t duplicates     # events ignored because they were known
    uint64_t orphans        # stored events whose parent was not known
    uint64_t applied        # events applied
    uint64_t messages       # events and heartbeats of any kind
    uint64_t beats          # heartbeats: it speaks the recovery protocol
    uint8_t state           # SourceState
    uint8_t suspect         # Suspicion
    uint8_t fresh           # of this numbering nothing was applied yet
    uint8_t linked          # whether the last event applied is the one of last_event_id
    uint8_t bare            # its events come without envelopes
    uint8_t from_zero       # the publisher's numbering begins with event 0, not with 1
    uint8_t origin          # Origin


cdef inline bint is_before(uint64_t a, uint64_t b) noexcept nogil:
    """Whether a sequence is before another one. They may wrap around."""
    return <int64_t>(a - b) < 0


cdef inline void past_note(
    PastPublishers* past, uint64_t publisher_id, uint64_t end
) noexcept nogil:
    """Another publisher is believed now; of this one all ids below `end` are known."""
    cdef uint8_t i
    for i in range(PAST):
        if past.all[i].end != 0 and past.all[i].publisher_id == publisher_id:
            past.all[i].end = max(past.all[i].end, end)
            return
    past.all[past.oldest].publisher_id = publisher_id
    past.all[past.oldest].end = end
    past.oldest = (past.oldest + 1) % PAST


cdef inline uint64_t past_end(const PastPublishers* past, uint64_t publisher_id) noexcept nogil:
    """Below which id all of a publisher's are known; 0 if it was not believed, or long ago."""
    cdef uint8_t i
    for i in range(PAST):
        if past.all[i].publisher_id == publisher_id:
            return past.all[i].end
    return 0


cdef inline bint cursor_has_gap(const EventCursor* c) noexcept nogil:
    """Whether an event is known of that was not applied, nor any after it."""
    return c.newest > c.last_event_id


cdef inline void cursor_begin(EventCursor* c, uint64_t publisher_id, bint bare) noexcept nogil:
    """Believe a publisher of which nothing is known yet: so far, nothing was missed."""
    c.publisher_id = publisher_id
    c.floor = c.sequence = c.last_event_id = c.newest = 0
    c.state = SOURCE_EXACT
    c.suspect = SUSPECT_NOT
    c.fresh = 1
    c.linked = 0
    c.bare = bare
    c.from_zero = 0
    c.origin = ORIGIN_SILENT


cdef inline void cursor_change(
    EventCursor* c, PastPublishers* past, uint64_t publisher_id, bint bare
) noexcept nogil:
    """Believe another publisher from now on: the source began anew."""
    if publisher_id != c.publisher_id and not c.bare:
        past_note(past, c.publisher_id, c.newest + 1)
    c.restarts += 1
    cursor_begin(c, publisher_id, bare)


cdef inline void cursor_restart(EventCursor* c, uint64_t floor) noexcept nogil:
    """Believe another numbering of the same publisher, in envelopes from `floor` on."""
    cdef uint8_t from_zero = c.from_zero
    c.restarts += 1
    cursor_begin(c, c.publisher_id, c.bare)
    c.floor = c.sequence = floor
    c.from_zero = from_zero
    c.origin = ORIGIN_IN_PLACE


cdef inline void cursor_receive(EventCursor* c, uint64_t sequence) noexcept nogil:
    """A message came in an envelope of this sequence."""
    if c.origin == ORIGIN_SILENT:
        c.floor = c.sequence = sequence - FAR
        c.origin = ORIGIN_NEW


cdef inline void cursor_note(EventCursor* c, uint64_t sequence, uint64_t event_id) noexcept nogil:
    """An event of this number exists, in an envelope of this sequence."""
    cdef uint64_t first = sequence - event_id
    if event_id > c.newest:
        c.newest = event_id
    if is_before(c.sequence, sequence):
        c.sequence = sequence
    if event_id < FAR and is_before(c.floor, first):
        c.floor = first  # an event 0 would have been there, or later


cdef inline void cursor_renumber(EventCursor* c, uint64_t floor) noexcept nogil:
    """The engine restarted behind its publisher after the last event applied, and before the
    newest one known: all that came from `floor` on is asked for again."""
    cdef uint64_t sequence = c.sequence
    cdef uint64_t newest = c.newest
    cdef uint8_t suspect = c.suspect
    cursor_restart(c, floor)
    c.suspect = suspect
    cursor_note(c, sequence, newest)


cdef inline bint restarted_between(
    uint64_t sequence, uint64_t event_id, uint64_t later_sequence, uint64_t later_id
) noexcept nogil:
    """Whether two events of a publisher, the second one in a later envelope, cannot be of one
    numbering."""
    if not is_before(sequence, later_sequence):
        return False
    return later_id <= event_id or later_id - event_id < later_sequence - sequence


cdef inline bint cursor_breaks(
    const EventCursor* c, uint64_t sequence, uint64_t event_id
) noexcept nogil:
    """Whether an event is of a later numbering than the last one applied."""
    return c.linked and restarted_between(
        c.applied_sequence, c.last_event_id, sequence, event_id
    )


cdef inline int cursor_place(
    const EventCursor* c, uint64_t sequence, uint64_t event_id
) noexcept nogil:
    """The Place of an event, or of a heartbeat that names it.

    What waits between the last event applied and the newest one is not looked at: that is done
    when its turn comes.
    """
    if c.origin == ORIGIN_SILENT:
        return PLACE_SAME
    if is_before(sequence, c.floor):
        return PLACE_OLDER
    if restarted_between(c.sequence, c.newest, sequence, event_id):
        return PLACE_NEWEST
    if restarted_between(sequence, event_id, c.sequence, c.newest):
        if c.linked and is_before(c.applied_sequence, sequence):
            return PLACE_OUTDATED
        return PLACE_OLDER
    if c.linked and event_id > c.last_event_id and is_before(sequence, c.applied_sequence):
        return PLACE_OLDER
    return PLACE_NEWER if cursor_breaks(c, sequence, event_id) else PLACE_SAME


cdef inline int cursor_follow(EventCursor* c, uint64_t sequence, int place) noexcept nogil:
    """Go over to another numbering of the publisher, if a message at a Place shows that there
    is one: VERDICT_RESET if so."""
    if place == PLACE_NEWEST:
        cursor_restart(c, c.sequence + 1)
    elif place == PLACE_NEWER:
        cursor_renumber(c, c.applied_sequence + 1)
    elif place == PLACE_OUTDATED:
        cursor_renumber(c, sequence + 1)
    else:
        return 0
    return VERDICT_RESET


cdef inline void cursor_apply(EventCursor* c, uint64_t sequence, uint64_t event_id) noexcept nogil:
    """An event is applied."""
    c.last_event_id = event_id
    c.applied_sequence = sequence
    c.fresh = 0
    c.linked = not c.bare
    c.from_zero |= event_id == 0


cdef inline bint cursor_is_ahead(const EventCursor* c) noexcept nogil:
    """Whether events may still come that the worker itself has announced already."""
    return c.origin == ORIGIN_SILENT and not c.fresh


cdef inline int cursor_admit(
    EventCursor* c,
    PastPublishers* past,
    uint64_t publisher_id,
    uint64_t sequence,
    uint64_t event_id,
    bint is_clear,
    bint buffer_gaps,
    bint bare,
) noexcept nogil:
    """Say what to do with an event, and move the cursor as if that were done.

    `buffer_gaps`: missing events are asked for, so that others may wait for them. `bare`: the
    event has no publisher and no sequence; both are 0.
    """
    cdef int reset = 0
    cdef int place
    cdef bint in_line
    cdef bint another = publisher_id != c.publisher_id or bare != c.bare
    c.messages += 1
    if (c.state == SOURCE_SILENT or another) and not bare:
        if event_id < past_end(past, publisher_id):
            c.duplicates += 1
            return VERDICT_IGNORE
    if c.state == SOURCE_SILENT:
        cursor_begin(c, publisher_id, bare)
    elif another:
        cursor_change(c, past, publisher_id, bare)
        reset = VERDICT_RESET
    elif cursor_is_ahead(c) and event_id <= c.last_event_id and not bare:
        c.duplicates += 1
        return VERDICT_IGNORE
    elif not bare:
        place = cursor_place(c, sequence, event_id)
        reset = cursor_follow(c, sequence, place)
        if place == PLACE_OLDER or place == PLACE_OUTDATED:
            c.duplicates += 1
            return VERDICT_IGNORE | reset
    elif event_id <= c.newest and not (c.fresh and c.newest == 0):
        # NATS delivers in order, and once: nothing but a restart makes ids go back.
        cursor_restart(c, 0)
        reset = VERDICT_RESET
    cursor_receive(c, sequence)
    if c.fresh:
        # Event 1 is the first only if no event was sent before it.
        in_line = event_id == 0 or (
            event_id == 1 and not c.from_zero and (c.origin == ORIGIN_IN_PLACE or sequence == 0)
        )
    else:
        in_line = event_id == c.last_event_id + 1
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
    cursor_apply(c, sequence, event_id)
    return VERDICT_APPLY | reset


cdef inline int cursor_heartbeat(
    EventCursor* c,
    PastPublishers* past,
    uint64_t publisher_id,
    uint64_t sequence,
    uint64_t last_event_id,
    bint buffer_gaps,
) noexcept nogil:
    """The source says what its last event was, and the sequence of that one's envelope."""
    cdef int verdict = VERDICT_IGNORE
    cdef int place
    cdef bint is_current = True
    c.messages += 1
    c.beats += 1
    if c.state == SOURCE_SILENT:
        cursor_begin(c, publisher_id, False)
    elif publisher_id != c.publisher_id or c.bare:
        # Unlike a stray event this says who is alive.
        cursor_change(c, past, publisher_id, False)
        verdict = VERDICT_RESET
    elif cursor_is_ahead(c) and last_event_id < c.last_event_id:
        return VERDICT_IGNORE
    else:
        place = cursor_place(c, sequence, last_event_id)
        verdict = cursor_follow(c, sequence, place)
        is_current = place != PLACE_OLDER and place != PLACE_OUTDATED and (
            c.origin == ORIGIN_SILENT or not is_before(sequence, c.sequence)
        )
    if is_current:
        cursor_receive(c, sequence)
        if last_event_id > c.newest and not cursor_has_gap(c) and not c.fresh:
            c.gaps += 1
        cursor_note(c, sequence, last_event_id)
        c.suspect = SUSPECT_NOT
    elif verdict == VERDICT_IGNORE:
        return VERDICT_IGNORE  # overtaken by an event
    if cursor_has_gap(c) and not (buffer_gaps and c.state == SOURCE_EXACT):
        verdict |= VERDICT_GIVE_UP
    return verdict


cdef inline void cursor_give_up(EventCursor* c, uint64_t last_event_id) noexcept nogil:
    """Everything up to an event counts as lost, unless it was applied; the blocks are forgotten."""
    c.last_event_id = last_event_id
    c.fresh = 0
    c.linked = 0
    c.suspect = SUSPECT_NOT
    c.given_up += 1
    if c.state == SOURCE_EXACT:
        c.state = SOURCE_REBUILDING


cdef inline void cursor_orphan(EventCursor* c) noexcept nogil:
    """A stored event named a parent that is not held: something was missed."""
    c.orphans += 1
    if c.state == SOURCE_EXACT:
        c.state = SOURCE_REBUILDING
