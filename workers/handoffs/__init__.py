"""How do engines hand a computed prompt over? A pure plan for each connector."""

from .connectors import Connector
from .fitting import Fit, Half, fit
from .meetings import Meetings
from .plan import HandoffPlan, Shape, plan_handoff, plan_queued, why_whole
from .queue_hint import RemotePrefillHint, read_hint
from .security import MOST_PARCEL_BYTES, foreign_host
