"""A trace against mock engines in virtual time and the real KvRouter; policies side by side.

Entered by the commands `simulate`, `sweep` and `grid`.
"""

from .bounds import idle_engine_ms
from .capacity import CapacityConfig
from .cells import FIGURES, MODEL_ERRORS, Cell, Figures, Kept, read_kept
from .comparison import Comparison, compare_figure, how_far_behind
from .config import DEFAULT_COMPARE, DEFAULT_WORKERS, Load, SimulationConfig
from .experiment import Experiment, Result, compare_policies
from .plots import draw_comparison
from .policies import PolicyVariant, parse_policies
from .simulated_run import SimulatedRun
from .verdict import CellResult, draw_grid, grid_table, judge

__all__ = [
    "CapacityConfig",
    "Cell",
    "CellResult",
    "Comparison",
    "DEFAULT_COMPARE",
    "DEFAULT_WORKERS",
    "Experiment",
    "FIGURES",
    "Figures",
    "Kept",
    "Load",
    "MODEL_ERRORS",
    "PolicyVariant",
    "Result",
    "SimulatedRun",
    "SimulationConfig",
    "compare_figure",
    "compare_policies",
    "draw_comparison",
    "draw_grid",
    "grid_table",
    "how_far_behind",
    "idle_engine_ms",
    "judge",
    "parse_policies",
    "read_kept",
]
