# _cursor.pxd: where an event stands in its source's numbering. Pure; read by the actor.
#
# One cursor per (worker, rank). A source is one publisher process: it numbers its events from 1,
# growing by one, and its envelopes by a sequence of their own. Restated in tests/oracle_cursor.py.
from libc.stdint cimport uint8_t, uint64_t


cdef enum SourceState:
    SOURCE_SILENT = 0      # no event yet
    SOURCE_EXACT = 1       # every event since its start, or since its last clear, was applied
    SOURCE_REBUILDING = 2  # something was missed: what is indexed is right but may be incomplete
    SOURCE_DEGRADED = 3    # as rebuilding, and the source does not answer requests to announce itself


cdef enum Verdict:
    VERDICT_APPLY = 0      # the next event, or the first one seen
    VERDICT_DUPLICATE = 1  # already applied: ignore it
    VERDICT_RESET = 2      # forget what this source said before, then apply it


cdef struct Cursor:
    uint64_t publisher_id   # of the envelope that carried the last event
    uint64_t sequence       # of that envelope
    uint64_t last_event_id
    uint64_t gaps           # times events were missing
    uint64_t restarts       # times the source began anew
    uint64_t duplicates     # events ignored because they were known
    uint64_t orphans        # stored events whose parent was not known
    uint64_t applied        # events applied
    uint8_t state           # SourceState
    uint8_t suspect         # we were deaf for a while: the next event will tell if any was missed


cdef inline Verdict cursor_admit(
    Cursor* c, uint64_t publisher_id, uint64_t sequence, uint64_t event_id, bint is_clear
) noexcept nogil:
    """Say what to do with an event, and move the cursor as if that were done."""
    cdef Verdict verdict = VERDICT_APPLY
    cdef bint from_start = event_id <= 1 or is_clear
    if c.state == SOURCE_SILENT:
        c.state = SOURCE_EXACT if from_start else SOURCE_REBUILDING
    elif publisher_id != c.publisher_id or (
        # Numbered anew in a later envelope: the engine behind the publisher restarted.
        event_id <= 1 and c.last_event_id > 1 and sequence > c.sequence
    ):
        c.restarts += 1
        c.state = SOURCE_EXACT if from_start else SOURCE_REBUILDING
        verdict = VERDICT_RESET
    elif event_id <= c.last_event_id:
        c.duplicates += 1
        return VERDICT_DUPLICATE
    elif event_id != c.last_event_id + 1:
        # A lost removal would leave blocks that are gone: claim nothing rather than too much.
        c.gaps += 1
        c.state = SOURCE_EXACT if is_clear else SOURCE_REBUILDING
        verdict = VERDICT_RESET
    elif is_clear:
        c.state = SOURCE_EXACT
    c.suspect = 0
    c.publisher_id = publisher_id
    c.sequence = sequence
    c.last_event_id = event_id
    return verdict


cdef inline void cursor_orphan(Cursor* c) noexcept nogil:
    """A stored event named a parent that is not held: something was missed."""
    c.orphans += 1
    if c.state == SOURCE_EXACT:
        c.state = SOURCE_REBUILDING
