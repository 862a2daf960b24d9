import numpy as np
from numpy.typing import NDArray

def stack_distances(
    nodes: NDArray[np.uint32], offsets: NDArray[np.int64], n_nodes: int
) -> NDArray[np.int64]: ...
