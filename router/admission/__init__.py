"""Whether a request goes now, waits, or is refused: limits on load, and the queue.

Entered by KvRouter (limits) and by Decider (queue); all is pure, its clock given,
but `Admission`, in which tasks wait.
"""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .limits import AdmissionConfig, LoadLimits
from .objectives import (
    NO_OBJECTIVES,
    SLO_ITL_KEY,
    SLO_KEYS,
    SLO_TTFT_KEY,
    Objectives,
    read_objectives,
)
from .queue import AdmissionQueue
from .tenants import TenantConfig
from .ticket import NORMAL, Lane, Ticket, Urgency

if TYPE_CHECKING:
    from .admission import Admission

# asyncio comes with it.
__getattr__ = lazy_names(__name__, {"Admission": ".admission"})
