import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

def split_tokens(request: bytes) -> tuple[bytes, bytes, int, int]: ...
def encode_generate(
    request_id: str,
    max_tokens: int,
    settings: bytes,
    tokens: npt.NDArray[np.uint32] | array.array[int],
    packed: Iterable[bytes] = (),
) -> tuple[bytes, int]: ...
def pack_tokens(tokens: npt.NDArray[np.uint32]) -> tuple[bytes, int]: ...
def unpack_tokens(packed: bytes, begin: int, end: int) -> bytes: ...
