"""Batches of an engine's gRPC event stream (smg.grpc.common.KvEventBatch), for the index.

Who reads such a stream looks at each batch's head, decides what to do with it, and posts it framed:
the index decodes the batch itself.
"""

from typing import NamedTuple

from . import _grpc_batch, _grpc_head, _plain_events

CLEARED_EVENTS = 4
"""Events of the index that a frame begins with if it clears: one for each tier."""


class BatchHead(NamedTuple):
    """What is to be known of a batch before it is applied."""

    sequence: int
    dp_rank: int
    """-1: it says none"""
    events: int
    """of the index, that its frame makes"""
    first_id: int
    """the engine's number of its first event; 0 if its events have none"""
    last_id: int
    hole: bool
    """whether numbers are missing between its events"""
    chunk_index: int
    chunk_count: int
    """of a snapshot that it is a chunk of; 0 if it is none"""
    unknown_before: int
    load_only: bool
    wrong_size: int
    """tokens of a block that no engine with the given block size has; 0 if there is none"""


def read_head(data: bytes, block_size: int) -> BatchHead | None:
    """The head of a serialized KvEventBatch; None if it is something else.

    A last block of fewer tokens is the end of a prompt, and not wrong.
    """
    head = _grpc_head.read_head(data, block_size)
    return None if head is None else BatchHead._make(head)


def frame_batch(
    data: bytes,
    *,
    worker_id: int,
    dp_rank: int,
    publisher_id: int,
    sequence: int,
    first_event_id: int,
    block_size: int,
    clears: bool = False,
) -> bytes:
    """A message for `EventIndex.post` with the events of a batch, numbered from `first_event_id`
    on. With `clears` they begin with CLEARED_EVENTS that forget what the worker holds.

    External hashes are the engine's; local hashes are made of the tokens, adapter and salt. A block
    with other keys matches no prompt; blocks behind one that is not full are left out, as are
    groups of a hybrid model other than full attention, and blocks in a remote pool. OverflowError:
    a number too large.
    """
    return _grpc_batch.frame_batch(
        data, worker_id, dp_rank, publisher_id, sequence, first_event_id, block_size, clears
    )


def plain_batch(payload: bytes, sequence: int, block_size: int) -> bytes | None:
    """What vLLM or SGLang published over ZMQ, as a serialized KvEventBatch of that number.

    A payload is msgpack: [timestamp, events, ...], and an event a map, or an array of its fields.
    Most are plain: full blocks of our size in the engine's own memory, named by numbers, and their
    removal. Their tokens go from one form into the other without a Python object for each. None for
    all else (adapters, salts, other keys, tiers, sizes, groups; what cannot be read): it is left to
    kv_events/dialects/zmq_payload.py, which knows every event, and is what this is held to.
    OverflowError if a number does not fit.
    """
    return _plain_events.plain_batch(payload, sequence, block_size)
