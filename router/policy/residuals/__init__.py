"""Whether what a policy foresees comes true: its latest predictions, and when they fail.

Entered by policies that foresee.
"""

from .watch import FailedPrediction, ResidualState, ResidualWatch

__all__ = ["FailedPrediction", "ResidualState", "ResidualWatch"]
