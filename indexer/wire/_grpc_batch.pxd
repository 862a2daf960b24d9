"""KvEventBatch messages of an engine's gRPC stream, decoded."""
from libc.stdint cimport uint8_t, uint32_t

from ._events cimport Event, EventBatch

# Append its events, numbered from `event`'s number on, of the worker that `event` names; 0 or a
# DecodeError. `event` gets the number behind them.
cdef int append_grpc_batch(
    EventBatch* batch, Event* event, const uint8_t* data, size_t size, uint32_t block_size
) noexcept nogil
