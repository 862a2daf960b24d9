"""Which worker is best: costs, forecasts, and how one of the candidates is picked.

Entered by KvRouter and by authors of policies, who derive from `Policy`; knows nothing of requests
on their way.
"""

from .base import MODES, Candidates, Foreseen, HeardBooking, Mode, Policy, ShedBound
from .decision import CandidateTerms, Decision, Explanation
from .draw import Rng, pick, pick_lowest
from .dynamo_cost import (
    LOWER_TIER_WEIGHTS,
    Blocks,
    CostInputs,
    CostParams,
    Counts,
    Floats,
    Mask,
    lower_saving,
    params_from_legacy_weight,
    terms,
    tier_weights_given,
)
from .forecast import KEEP_WEIGHT, ForecastParams, ForecastPolicy
from .guard import GuardedPolicy
from .modes import DynamoCost, LMetric, mode_policy
from .residuals import ResidualState
from .selection import Preferred, all_busy, choose, discounted
from .shadow import SHADOW_OUTCOMES, BothLearn, Shadow

__all__ = [
    "Blocks",
    "BothLearn",
    "CandidateTerms",
    "Candidates",
    "CostInputs",
    "CostParams",
    "Counts",
    "Decision",
    "DynamoCost",
    "Explanation",
    "Floats",
    "ForecastParams",
    "ForecastPolicy",
    "Foreseen",
    "GuardedPolicy",
    "HeardBooking",
    "KEEP_WEIGHT",
    "LMetric",
    "LOWER_TIER_WEIGHTS",
    "MODES",
    "Mask",
    "Mode",
    "Policy",
    "Preferred",
    "ResidualState",
    "Rng",
    "Shadow",
    "SHADOW_OUTCOMES",
    "ShedBound",
    "all_busy",
    "choose",
    "discounted",
    "lower_saving",
    "tier_weights_given",
    "mode_policy",
    "params_from_legacy_weight",
    "pick",
    "pick_lowest",
    "terms",
]
