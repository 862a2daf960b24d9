from typing import final

import numpy as np
from numpy.typing import NDArray

@final
class ChainTable:
    def add_all(
        self,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.int64],
        nodes: NDArray[np.uint32],
        known: NDArray[np.uint32],
        latest: NDArray[np.int64],
    ) -> int: ...
    def export(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]: ...
