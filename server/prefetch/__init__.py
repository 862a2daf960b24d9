"""Which engine is to load what of a request that waits, before it comes?

Driven by the dispatcher in real time and by the simulation in virtual time.
"""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .plan import PrefetchPlan, ask_held, ask_sent

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

__getattr__ = lazy_names(__name__, {"Prefetcher": ".prefetcher"})
