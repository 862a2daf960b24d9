"""Kernel: writes serialized SelectWorkerResponses."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ...base.native._protobuf cimport (
    DELIMITED,
    delimited_size,
    number_size,
    put_delimited,
    put_number,
    put_varint,
)

cdef enum:  # field numbers
    WORKER = 1
    ADDRESS = 2
    OVERLAP_BLOCKS = 3
    REQUEST_BLOCKS = 4
    CACHED_TOKENS = 5
    BOOKED = 6
    HOST_OVERLAP_BLOCKS = 7
    DISK_OVERLAP_BLOCKS = 8
    WORKER_ID = 1  # of Worker
    DP_RANK = 2
    LONGEST_WORKER = 11 + 6  # bytes of both with their tags


def write_selection(
    uint64_t worker_id,
    uint32_t dp_rank,
    str address not None,
    uint32_t overlap_blocks,
    uint32_t request_blocks,
    uint32_t cached_tokens,
    bint booked,
    uint32_t host_overlap_blocks,
    uint32_t disk_overlap_blocks,
):
    """The serialized message; OverflowError if a number is none of its field's."""
    cdef Py_ssize_t address_size = 0
    cdef const char* text = PyUnicode_AsUTF8AndSize(address, &address_size)
    cdef uint8_t[LONGEST_WORKER] worker
    cdef size_t worker_size = (
        put_number(put_number(worker, WORKER_ID, worker_id), DP_RANK, dp_rank) - worker
    )
    cdef size_t size = (
        2 + worker_size
        + delimited_size(address_size)
        + number_size(overlap_blocks)
        + number_size(request_blocks)
        + number_size(cached_tokens)
        + number_size(booked)
        + number_size(host_overlap_blocks)
        + number_size(disk_overlap_blocks)
    )
    message = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(message)
    if worker_size:
        at = put_delimited(at, WORKER, worker, worker_size)
    else:  # it is written, though all of it is 0
        at[0] = WORKER << 3 | DELIMITED
        at = put_varint(at + 1, 0)
    at = put_delimited(at, ADDRESS, text, address_size)
    at = put_number(at, OVERLAP_BLOCKS, overlap_blocks)
    at = put_number(at, REQUEST_BLOCKS, request_blocks)
    at = put_number(at, CACHED_TOKENS, cached_tokens)
    at = put_number(at, BOOKED, booked)
    at = put_number(at, HOST_OVERLAP_BLOCKS, host_overlap_blocks)
    put_number(at, DISK_OVERLAP_BLOCKS, disk_overlap_blocks)
    return message
