"""Which engine is to load what of a request that waits, before it comes?

Driven by the dispatcher in real time and by the simulation in virtual time.
"""

from .plan import PrefetchCounts, PrefetchPlan
from .prefetcher import Prefetcher, ask_held, ask_sent

__all__ = ["PrefetchCounts", "PrefetchPlan", "Prefetcher", "ask_held", "ask_sent"]
