"""Block hashes, what a prefix cache is keyed by: for the router, publishers and mock engines.

Bit-exact with Dynamo's, so that fleets can be mixed:

- A block is exactly ``kv_block_size`` tokens; an incomplete last block has no hash. With Eagle a
  block sees one token more than it advances, so n tokens have ``(n - 1) // kv_block_size``.
- Local hash = XXH3-64 of the block's tokens as little-endian u32, then of its multimodal hashes,
  sorted, as little-endian u64. The seed is 1337, plus XXH3-64(lora_name, seed 0) and
  XXH3-64(cache_namespace, seed 1) where these are non-empty.
- Sequence hash: the first block's is its local hash; every other is XXH3-64(previous sequence
  hash, local hash) with seed 1337, whatever the seed of the local hashes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import _hashing

__all__ = [
    "BlockMmInfos",
    "Integers",
    "block_hashes",
    "compute_block_hash_for_seq",
    "compute_seq_hash_for_block",
    "sequence_hashes",
]

# list, tuple, any iterable of ints; array, numpy array or memoryview of any integer width (read in
# place where the width fits); bytes, bytearray or memoryview of bytes: little-endian items.
Integers: TypeAlias = Iterable[SupportsIndex]
# Per block None or {"mm_objects": [{"mm_hash": u64, "offsets": ...}, ...]}; may be shorter than
# the prompt. Only the mm_hash values enter the block's hash.
BlockMmInfos: TypeAlias = Sequence[Mapping[str, Any] | None]


def block_hashes(
    tokens: Integers,
    kv_block_size: int,
    block_mm_infos: BlockMmInfos | None = None,
    lora_name: str | None = None,
    is_eagle: bool | None = None,
    cache_namespace: str | None = None,
) -> NDArray[np.uint64]:
    """Local hash of every complete block of a prompt, in order; long prompts outside the GIL.

    ValueError: block size below 1, bytes that end within a token. OverflowError: a token id that
    is no u32. TypeError: tokens that are no integers.
    """
    return _hashing.block_hashes(
        tokens, kv_block_size, block_mm_infos, lora_name, is_eagle, cache_namespace
    )


def packed_hashes(
    tokens: Integers,
    kv_block_size: int,
    cache_namespace: str | None = None,
    parent: int | None = None,
) -> tuple[bytes, bytes]:
    """`block_hashes` of tokens, and the `sequence_hashes` of these behind `parent`, 8 bytes each as
    the machine has them: two arrays, and views of them, take longer to make. Raises as those do."""
    return _hashing.packed_hashes(tokens, kv_block_size, cache_namespace, parent)


def sequence_hashes(local_hashes: Integers, parent: int | None = None) -> NDArray[np.uint64]:
    """Chained hash of every prefix; with `parent` the chain goes on from that sequence hash.

    OverflowError: a hash that is no u64.
    """
    return _hashing.sequence_hashes(local_hashes, parent)


def compute_block_hash_for_seq(
    tokens: Integers,
    kv_block_size: int,
    block_mm_infos: BlockMmInfos | None = None,
    lora_name: str | None = None,
    is_eagle: bool | None = None,
    cache_namespace: str | None = None,
) -> list[int]:
    """`block_hashes` under Dynamo's name, as a list of ints."""
    hashes: list[int] = _hashing.block_hashes(
        tokens, kv_block_size, block_mm_infos, lora_name, is_eagle, cache_namespace
    ).tolist()
    return hashes


def compute_seq_hash_for_block(local_hashes: Integers) -> list[int]:
    """`sequence_hashes` under Dynamo's name, as a list of ints."""
    hashes: list[int] = _hashing.sequence_hashes(local_hashes).tolist()
    return hashes
