"""What the workers hold of one prompt, tier by tier."""

import numpy as np
import numpy.typing as npt

from ..indexer.prefix_index import LOWER_ROWS, PrefixIndex
from .policy import Blocks, CostParams, lower_saving


class Overlaps:
    """Leading blocks of a prompt by tier, by worker number; good until the next `read`.

    `host` and `disk` (disk and external storage) are None as long as no worker has reported a lower
    tier: that costs a decision nothing.
    """

    __slots__ = ("_lower", "capacity", "device", "disk", "host")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.device: Blocks = np.zeros(capacity, dtype=np.uint32)
        self._lower: npt.NDArray[np.uint32] | None = None
        self.host: Blocks | None = None
        self.disk: Blocks | None = None

    def read(self, index: PrefixIndex, local_hashes: npt.NDArray[np.uint64]) -> None:
        """Ask the index, for all tiers at one moment."""
        if not index.lower_tiers:
            index.match(local_hashes, self.device)
            return
        if self._lower is None:
            self._lower = np.zeros((LOWER_ROWS, self.capacity), dtype=np.uint32)
            self.host, self.disk = self._lower[0], self._lower[1]
        index.match(local_hashes, self.device, self._lower)

    def saved(self, params: CostParams) -> Blocks:
        """Whole blocks of prefill that each worker is spared, lower tiers by their weights."""
        if self.host is None or self.disk is None:
            return self.device
        lower: Blocks = lower_saving(params, self.host, self.disk).astype(np.uint32)
        return self.device + lower
