import numpy as np
from numpy.typing import NDArray

from .hashing import BlockMmInfos, Integers

def block_hashes(
    tokens: Integers,
    kv_block_size: int,
    block_mm_infos: BlockMmInfos | None = None,
    lora_name: str | None = None,
    is_eagle: bool | None = None,
    cache_namespace: str | None = None,
) -> NDArray[np.uint64]: ...
def packed_hashes(
    tokens: Integers,
    kv_block_size: int,
    cache_namespace: str | None = None,
    parent: int | None = None,
) -> tuple[bytes, bytes]: ...
def sequence_hashes(local_hashes: Integers, parent: int | None = None) -> NDArray[np.uint64]: ...
