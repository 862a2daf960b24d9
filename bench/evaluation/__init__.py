"""How good a policy is where it was not tuned: families of traffic, fleets and errors in splits.

Entered by the commands `bench grid`, `bench live`, `bench flood` and `sweep`.
"""

from .command import EvaluationConfig, run_evaluation
from .conditions import FLOOD, Condition, flooded_traffic
from .splits import REPORT, SPLIT_NAMES, TUNABLE, Split, require_tunable, split_of, tuning_split

__all__ = [
    "Condition",
    "EvaluationConfig",
    "FLOOD",
    "REPORT",
    "SPLIT_NAMES",
    "Split",
    "TUNABLE",
    "flooded_traffic",
    "require_tunable",
    "run_evaluation",
    "split_of",
    "tuning_split",
]
