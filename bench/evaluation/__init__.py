"""How good a policy is where it was not tuned: families of traffic, fleets and errors in splits.

Entered by the commands `bench grid`, `bench live`, `bench flood` and `sweep`.
"""

from .command import EvaluationConfig, run_evaluation
from .conditions import FLOOD, Condition, flooded_traffic
from .figures import FIGURES, Figures, figures_of
from .runner import obey_the_parent
from .splits import REPORT, SPLIT_NAMES, Split, require_tunable, split_of
from .tables import cells_table, evaluation_content
from .verdict import CellVerdict, judge_cell
