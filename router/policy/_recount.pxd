"""Recounts what timelines sum up: for tests of the forecast."""

from libc.math cimport fabs
from libc.stdint cimport uint32_t

from ._timeline cimport NO_BOOKING, Booking, EngineTimeline, booking_attended


cdef inline int recount(
    const EngineTimeline* timelines, uint32_t size, const Booking* bookings, dict records, list ids
) except -1:
    """AssertionError if a sum is not that of the bookings. `records` are by request id, and `ids`
    by record."""
    cdef uint32_t number, record, before
    cdef const EngineTimeline* timeline
    cdef const Booking* booking
    queued = 0
    contexts = {r: bookings[<uint32_t>r].context for r in records.values()}
    for number in range(size):
        timeline = &timelines[number]
        if not timeline.present:
            continue
        assert 0 <= timeline.running <= min(timeline.budget, timeline.end - timeline.done)
        mine = [r for r in contexts if bookings[<uint32_t>r].worker == number]
        assert timeline.requests == len(mine)
        assert timeline.context == sum(map(contexts.get, mine))
        record, before, waiting = timeline.head, NO_BOOKING, []
        while record != NO_BOOKING:
            booking = &bookings[record]
            assert booking.queued and booking.worker == number and booking.before == before
            assert records[ids[record]] == record
            assert before == NO_BOOKING or bookings[before].end <= booking.end
            assert booking.end <= timeline.end
            waiting += [record] * (booking.step_end < 0)
            assert not waiting or booking.step_end < 0
            before, record, queued = record, booking.after, queued + 1
        assert timeline.tail == before
        assert timeline.first_waiting == (waiting[0] if waiting else <uint32_t>NO_BOOKING)
        assert timeline.waiting == len(waiting)
        assert timeline.waiting_context == sum(map(contexts.get, waiting))
        begins = timeline.done + timeline.running
        queue = [r for r in mine if bookings[<uint32_t>r].queued]
        assert timeline.attended == sum([
            booking_attended(&bookings[<uint32_t>r], timeline.done, begins) for r in queue
        ])
        assert timeline.waiting_attended == sum([
            booking_attended(&bookings[<uint32_t>r], begins, timeline.end) for r in queue
        ])
        assert timeline.queued == len(queue)
        begun = [
            bookings[<uint32_t>r].first_at for r in mine
            if not (bookings[<uint32_t>r].queued or bookings[<uint32_t>r].expected)
        ]
        assert timeline.answering == len(begun)
        assert fabs(timeline.first_ats - sum(begun)) <= 1e-9 * (1.0 + fabs(timeline.first_ats))
        assert timeline.queued_context == sum(map(contexts.get, queue))
    assert queued == sum([bookings[<uint32_t>r].queued for r in contexts])
    return 0
