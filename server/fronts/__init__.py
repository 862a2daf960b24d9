"""Several processes on the same ports: each is a whole server, and they share what they know.

Entered by the commands `serve` and `frontend`, and by the servers that they run.
"""

from .kept_child import SHOW_STACK
from .place import FrontPlace, PlacedSettings
from .pulse import Pulse
from .shared import (
    SharedPages,
    SharedReload,
    share_aborts,
    share_bookings,
    share_forgetting,
    share_metrics,
    share_overview,
    share_replicas,
)
from .shared_changes import SharedChanges
from .siblings import Siblings
from .supervisor import Supervisor
