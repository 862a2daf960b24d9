"""How good a policy is where it was not tuned: families of traffic, fleets and errors in splits.

Entered by the commands `bench grid`, `bench live` and `sweep`.
"""

from .command import EvaluationConfig, run_evaluation
from .splits import REPORT, SPLIT_NAMES, TUNABLE, require_tunable, split_of, tuning_split

__all__ = [
    "EvaluationConfig",
    "REPORT",
    "SPLIT_NAMES",
    "TUNABLE",
    "require_tunable",
    "run_evaluation",
    "split_of",
    "tuning_split",
]
