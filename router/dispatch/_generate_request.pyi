import numpy as np
import numpy.typing as npt

def parse_generate(
    body: bytes,
) -> tuple[str, npt.NDArray[np.uint32], int, int, int, int | None, int | None, bool, bool]: ...
