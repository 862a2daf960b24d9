import numpy as np
import numpy.typing as npt

def parse_generate(
    body: bytes, max_tokens: int = ..., max_id: int = ...
) -> tuple[
    str, npt.NDArray[np.uint32], int, int, int, int | None, int | None, bool, bool, bool, bool
]: ...
def parse_tokens(
    body: bytes, number: int, max_tokens: int, max_rest: int
) -> tuple[npt.NDArray[np.uint32], bytes]: ...
