"""How does a prompt come from a prefill worker to the worker that decodes its answer?

A pool has `Handoffs`: it decides each request's workers, and carries both legs as one call, which
the dispatcher treats as any other.
"""

from .handoffs import Handoffs, Partners
from .leg import PrefillFailedError, PrefillLeg
from .outcomes import HandoffOutcomes
from .sharing import SharedRequest
