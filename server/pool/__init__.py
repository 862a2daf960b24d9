"""Workers that requests are routed among, all that serves them, and where they are found.

Entered by servers of a set of workers.
"""

from .configured_pool import ConfiguredPool, Sources
from .worker_discovery import MOST_WORKERS, WorkerPlane
from .worker_pool import WorkerPool
