import numpy as np
import numpy.typing as npt

from ....indexer.event_index._actor import IndexActor

def read_prompts(
    actor: IndexActor,
    hashes: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.uint32],
    numbers: int,
    *,
    seed: int,
    mean_gap_us: int,
    each_ns: npt.NDArray[np.uint32],
    stop: npt.NDArray[np.uint32],
) -> int: ...
