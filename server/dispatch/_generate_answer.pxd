"""What routing and records need of a serialized GenerateResponse."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef struct Answer:
    uint64_t tokens             # token ids in it
    uint32_t completion_tokens
    uint32_t cached_tokens
    uint32_t kind               # CHUNK, COMPLETE, or 0 for neither
    const uint8_t* reason       # why it ended, in the message; NULL: it does not say
    uint64_t reason_bytes


# Fills `answer`; false if the bytes are no such message.
cdef bint read_message(bytes message, Answer* answer) noexcept
