import numpy as np
from numpy.typing import NDArray

def fill(
    tokens: NDArray[np.uint32],
    ids: NDArray[np.uint64],
    seed: int,
    vocab_size: int,
    block_size: int,
) -> None:
    """Write the tokens of the blocks `ids`; ValueError if they are too few."""

def mix_values(values: NDArray[np.uint64]) -> None:
    """Replace each value by its splitmix64 finaliser: the same in every process, evenly spread."""
