"""Who holds which block: hashes, the radix tree, event formats, and the indexes built of them."""

from .approximate import ApproximateIndex
from .hashing import (
    block_hashes,
    compute_block_hash_for_seq,
    compute_seq_hash_for_block,
    sequence_hashes,
)
from .tree import RadixTree
from .wire import decode_cache_event, decode_event_message, encode_event_message

__all__ = [
    "ApproximateIndex",
    "RadixTree",
    "block_hashes",
    "compute_block_hash_for_seq",
    "compute_seq_hash_for_block",
    "decode_cache_event",
    "decode_event_message",
    "encode_event_message",
    "sequence_hashes",
]
