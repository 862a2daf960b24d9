import numpy as np
import numpy.typing as npt

def count_parts(body: bytes) -> tuple[int, int]: ...
def cut_tokens(
    body: bytes, key: bytes, max_tokens: int, max_rest: int
) -> tuple[npt.NDArray[np.uint32] | None, bytes]: ...
