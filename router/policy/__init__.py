"""Which worker is best: costs, forecasts, and how one of the candidates is picked.

Entered by KvRouter and by authors of policies; knows nothing of requests on their way.
"""

from .base import MODES, Hold, Mode
from .cost import (
    LOWER_TIER_WEIGHTS,
    Blocks,
    CostParams,
    Counts,
    Floats,
    Mask,
    lower_saving,
    params_from_legacy_weight,
    terms,
)
from .decision import CandidateTerms, Decision, Explanation
from .forecast import forecast_strategy
from .selection import Candidates, Observer, Rng, Strategy, choose, pick, pick_lowest, strategy

__all__ = [
    "Blocks",
    "CandidateTerms",
    "Candidates",
    "CostParams",
    "Counts",
    "Decision",
    "Explanation",
    "Floats",
    "Hold",
    "LOWER_TIER_WEIGHTS",
    "MODES",
    "Mask",
    "Mode",
    "Observer",
    "Rng",
    "Strategy",
    "choose",
    "forecast_strategy",
    "lower_saving",
    "params_from_legacy_weight",
    "pick",
    "pick_lowest",
    "strategy",
    "terms",
]
