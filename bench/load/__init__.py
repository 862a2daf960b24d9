"""Live load: a client that replays a trace, what it counts, and the processes it needs.

Entered by the commands `replay`, `demo` and `proxy`.
"""

from .client import LoadClient, encode_generate
from .progress import OnStart, progress_bar
from .serve_process import READY, ServeProcess
from .stats import Tally

__all__ = [
    "LoadClient",
    "OnStart",
    "READY",
    "ServeProcess",
    "Tally",
    "encode_generate",
    "progress_bar",
]
