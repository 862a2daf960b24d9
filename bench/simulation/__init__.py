"""A trace against mock engines in virtual time and the real KvRouter; policies side by side.

Entered by the commands `simulate`, `sweep` and `grid`.
"""

from .config import DEFAULT_WORKERS, SimulationConfig
from .experiment import Arena, Load
from .outcome import SimulatedRun
from .plots import prepare, save_figure
from .policies import Contestant, parse_contestants

__all__ = [
    "Arena",
    "Contestant",
    "DEFAULT_WORKERS",
    "Load",
    "SimulatedRun",
    "SimulationConfig",
    "parse_contestants",
    "prepare",
    "save_figure",
]
