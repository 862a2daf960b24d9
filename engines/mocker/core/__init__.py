"""The mock engine as native state machines: KV cache, scheduler, step times, one engine or many.

No clock and no I/O; the Python around it is in engines/mocker.
"""

from ._single_engine import SingleEngine
from ._timing import StepTiming
from ._virtual import Fleet
