import array

import numpy as np
import numpy.typing as npt

def split_tokens(request: bytes) -> tuple[bytes, bytes, int, int]: ...
def tokens_field(tokens: npt.NDArray[np.uint32] | array.array[int]) -> bytes: ...
