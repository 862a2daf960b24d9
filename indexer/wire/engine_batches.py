"""Batches of engines' event streams, for the index: KvEventBatch (smg.grpc.common) of a stream over
gRPC, and what vLLM and SGLang publish over ZMQ.

The reader of a stream looks at each batch's head, decides what to do with it, and posts it framed.
"""

from typing import NamedTuple

from . import _grpc_head
from ._engine_events import EngineEventDecoder
from ._engine_frames import frame_batch

__all__ = [
    "CLEARED_EVENTS",
    "BatchHead",
    "EngineBatch",
    "EngineEvents",
    "frame_batch",
    "read_grpc_batch",
]

CLEARED_EVENTS = 4
"""Events of the index that a frame begins with if it clears: one for each tier."""


class BatchHead(NamedTuple):
    """What is to be known of a batch before it is applied."""

    sequence: int
    dp_rank: int = -1
    """-1: it says none"""
    events: int = 0
    """of the index, that its frame makes"""
    first_id: int = 0
    """the engine's number of its first event; 0 if its events have none"""
    last_id: int = 0
    hole: bool = False
    """whether numbers are missing between its events"""
    chunk_index: int = 0
    chunk_count: int = 0
    """of a snapshot that it is a chunk of; 0 if it is none"""
    unknown_before: int = 0
    load_only: bool = False
    wrong_size: int = 0
    """tokens of a block that no engine with the given block size has; 0 if there is none"""


class EngineBatch(NamedTuple):
    """A batch and its head."""

    head: BatchHead
    data: bytes
    """a KvEventBatch, or what an EngineEvents made"""
    decoded: bool = False
    """whether an EngineEvents made it"""


class EngineEvents:
    """Decodes one engine's payloads as vLLM and SGLang publish them, each once, when it arrives:
    whether one can be read, and how many events it has, must be known before the next one.

    A payload is msgpack: [timestamp, events, ...]. An event is a map with a `type`, or, in older
    engines, an array of its fields. Block hashes may be signed, unsigned, or bytes, of which the
    last 64 bits name the block. A chain's salt is that which its first block names.
    """

    def __init__(self, block_size: int) -> None:
        """`block_size` is that of our index, in tokens."""
        self._decoder = EngineEventDecoder(block_size)

    def read(self, payload: bytes, sequence: int) -> EngineBatch | None:
        """The batch of that number; None if the payload cannot be read.

        ValueError, with the reason, if its blocks cannot be those of our index.
        """
        decoded = self._decoder.decode(payload)
        if decoded is None:
            return None
        events, data = decoded
        return EngineBatch(BatchHead(sequence, -1, events), data, True)

    def forget(self) -> None:
        """The engine sends its cache from the beginning."""
        self._decoder.forget()


def read_grpc_batch(data: bytes, block_size: int) -> EngineBatch | None:
    """A serialized KvEventBatch with its head; None if it is something else.

    A last block of fewer tokens is the end of a prompt, and not wrong.
    """
    head = _grpc_head.read_head(data, block_size)
    return None if head is None else EngineBatch(BatchHead._make(head), data)
