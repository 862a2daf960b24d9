"""Several processes that serve one port: fronts that parse and stream, a decider that decides.

Entered by the command `serve`, and by the processes that it starts.
"""

from .decider import Decider
from .front import Front, FrontPlace
from .kept_child import SHOW_STACK
from .supervisor import Supervisor, read_config

__all__ = [
    "SHOW_STACK",
    "Decider",
    "Front",
    "FrontPlace",
    "Supervisor",
    "read_config",
]
