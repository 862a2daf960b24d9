"""Several processes that serve one port: fronts that parse and stream, a decider that decides.

Entered by the command `serve`, and by the processes that it starts.
"""

from .decider import Decider
from .front import Front, FrontPlace
from .supervisor import SOCKET_FILE, Supervisor, read_config

__all__ = ["SOCKET_FILE", "Decider", "Front", "FrontPlace", "Supervisor", "read_config"]
