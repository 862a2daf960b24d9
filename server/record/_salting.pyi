"""Types of the kernel that salts what a record has."""

import numpy as np
import numpy.typing as npt

def siphash_of(data: bytes, key: bytes) -> int:
    """SipHash-2-4 of some bytes, 64 bits. ValueError unless the key has 16 bytes."""

def json_of_salted(
    hashes: npt.NDArray[np.uint64], step: int, tail: int | None, key: bytes
) -> bytes:
    """A JSON array of every `step`-th hash (the last one of each `step`) and of `tail`, where there
    is one: each the upper 53 bits of its SipHash. ValueError for a step below 1, another key."""
