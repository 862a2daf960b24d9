"""More of the same traffic: models learned from a trace, and requests drawn from them.

Entered by the commands `synthesize`, `analyze`, `fidelity` and `demo`, and by the index benchmark.
"""

from .fit import TOLERANCE, Fit, check_fit
from .markov import WINDOW
from .sample import KINDS, SAMPLE_TRACE, ModelKind, sample_traffic, synthesize
from .scaling import Scaling
from .streams import Stream, Streams
from .trace_model import TraceModel, describe_model, is_model, learn_model, load_model, save_model
