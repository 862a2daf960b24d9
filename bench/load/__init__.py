"""Live load: a client that replays a trace, what it counts, and the processes it needs.

Entered by the commands `replay`, `demo`, `proxy` and `hostile`.
"""

from .client import LoadClient, encode_generate
from .progress import OnStart, progress_bar
from .proxy_peers import GENERATE, Methods
from .serve_process import READY, ServeProcess, mock_fleet_arguments
from .stats import LoadStats
from .target import TargetAccess

__all__ = [
    "GENERATE",
    "LoadClient",
    "LoadStats",
    "Methods",
    "OnStart",
    "READY",
    "ServeProcess",
    "TargetAccess",
    "encode_generate",
    "mock_fleet_arguments",
    "progress_bar",
]
