"""Streams that outlive their worker: what is carried to another one, and which failures allow it.

Entered by the dispatcher.
"""

from .carried_stream import CarriedStream, EndedEarlyError
from .rules import RefusedMove, failure_moves, why_fixed
