"""A bounded queue of messages between threads, oldest first."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ._threads cimport (
    pthread_cond_destroy,
    pthread_cond_init,
    pthread_cond_signal,
    pthread_cond_t,
    pthread_cond_wait,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)


cdef struct Message:
    uint8_t* data              # owned by the thread that took the message out
    size_t size                # bytes


cdef struct Mailbox:
    pthread_mutex_t lock       # guards all below
    pthread_cond_t filled      # signalled when a message came, or the mailbox is closed
    Message* ring              # owned
    uint32_t capacity          # of the ring, in messages
    uint32_t head              # index of the oldest message in the ring
    uint32_t length            # messages waiting
    size_t bytes               # in those
    size_t max_bytes           # a single message may be larger
    uint64_t taken             # messages taken out, ever
    uint64_t refused           # messages not taken in
    bint closed                # holds nothing, and takes nothing in any more


cdef inline bint mailbox_open(Mailbox* box, uint32_t capacity, size_t max_bytes) noexcept nogil:
    """False: no memory. The struct is zeroed before, so that mailbox_destroy is safe either way."""
    pthread_mutex_init(&box.lock, NULL)
    pthread_cond_init(&box.filled, NULL)
    box.capacity = capacity
    box.max_bytes = max_bytes
    box.ring = <Message*>malloc(capacity * sizeof(Message))
    return box.ring != NULL


cdef inline bint mailbox_add(Mailbox* box, const uint8_t* data, size_t size) noexcept nogil:
    """Copy a message in; false, and counted, if it is closed, full, or there is no memory. Wakes no
    thread (mailbox_wake)."""
    cdef Message message
    cdef bint accepted
    message.size = size
    message.data = <uint8_t*>malloc(size if size else 1)
    if message.data != NULL:
        memcpy(message.data, data, size)
    pthread_mutex_lock(&box.lock)
    accepted = (
        message.data != NULL
        and not box.closed
        and box.length < box.capacity
        and (box.length == 0 or box.bytes + size <= box.max_bytes)
    )
    if accepted:
        box.ring[(box.head + box.length) % box.capacity] = message
        box.length += 1
        box.bytes += size
    else:
        box.refused += 1
    pthread_mutex_unlock(&box.lock)
    if not accepted:
        free(message.data)
    return accepted


cdef inline void mailbox_wake(Mailbox* box) noexcept nogil:
    """Without the lock, so that the thread that wakes need not wait for it."""
    pthread_cond_signal(&box.filled)


cdef inline bint mailbox_pop(Mailbox* box, Message* message) noexcept nogil:
    """The oldest message; false if there is none. Under the lock."""
    if box.length == 0:
        return False
    message[0] = box.ring[box.head]
    box.head = (box.head + 1) % box.capacity
    box.length -= 1
    box.bytes -= message.size
    return True


cdef inline bint mailbox_take(Mailbox* box, uint64_t end, Message* message) noexcept nogil:
    """The oldest message, if fewer than `end` were taken before it; false if there is none."""
    cdef bint found
    pthread_mutex_lock(&box.lock)
    found = box.taken < end and mailbox_pop(box, message)
    box.taken += found
    pthread_mutex_unlock(&box.lock)
    return found


cdef inline uint64_t mailbox_end(Mailbox* box) noexcept nogil:
    """For mailbox_take: where what waits now ends."""
    cdef uint64_t end
    pthread_mutex_lock(&box.lock)
    end = box.taken + box.length
    pthread_mutex_unlock(&box.lock)
    return end


cdef inline bint mailbox_wait(Mailbox* box) noexcept nogil:
    """Sleep until there is a message; false once the mailbox is closed."""
    cdef bint closed
    pthread_mutex_lock(&box.lock)
    while box.length == 0 and not box.closed:
        pthread_cond_wait(&box.filled, &box.lock)
    closed = box.closed
    pthread_mutex_unlock(&box.lock)
    return not closed


cdef inline uint32_t mailbox_length(Mailbox* box) noexcept nogil:
    cdef uint32_t length
    pthread_mutex_lock(&box.lock)
    length = box.length
    pthread_mutex_unlock(&box.lock)
    return length


cdef inline uint64_t mailbox_refused(Mailbox* box) noexcept nogil:
    cdef uint64_t refused
    pthread_mutex_lock(&box.lock)
    refused = box.refused
    pthread_mutex_unlock(&box.lock)
    return refused


cdef inline void mailbox_close(Mailbox* box) noexcept nogil:
    """Drop what waits, take nothing in any more, and wake who waits."""
    cdef Message message
    pthread_mutex_lock(&box.lock)
    box.closed = True
    while mailbox_pop(box, &message):
        free(message.data)
    pthread_cond_signal(&box.filled)
    pthread_mutex_unlock(&box.lock)


cdef inline void mailbox_destroy(Mailbox* box) noexcept nogil:
    """No thread may use it any more."""
    mailbox_close(box)
    free(box.ring)
    pthread_cond_destroy(&box.filled)
    pthread_mutex_destroy(&box.lock)
