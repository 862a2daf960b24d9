"""Types of the `_dynamo_cost` kernel; dynamo_cost.py and selection.py say what the calls mean."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

class _Weights(Protocol):
    """What the kernel reads off its parameters: see cost.CostParams."""

    @property
    def overlap_score_credit(self) -> float: ...
    @property
    def credit_decay(self) -> float: ...
    @property
    def prefill_load_scale(self) -> float: ...
    @property
    def decode_active_request_weight(self) -> float: ...
    @property
    def host_cache_hit_weight(self) -> float: ...
    @property
    def disk_cache_hit_weight(self) -> float: ...
    @property
    def track_prefill_tokens(self) -> bool: ...

def evaluate(
    params: _Weights,
    isl: int,
    block_size: int,
    overlaps: npt.NDArray[np.uint32] | None,
    prefill_tokens: npt.NDArray[np.int64] | None,
    potential_blocks: npt.NDArray[np.float64] | None,
    active_requests: npt.NDArray[np.int64] | None,
    eligible: npt.NDArray[np.bool_],
    host_overlaps: npt.NDArray[np.uint32] | None,
    disk_overlaps: npt.NDArray[np.uint32] | None,
    explain: bool,
) -> npt.NDArray[np.float64]: ...
def pick(costs: npt.NDArray[np.float64], temperature: float, u: float) -> int: ...
