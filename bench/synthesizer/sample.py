"""The trace that ships with the package, and more traffic of its kind.

bench/data/README.md says what it was learned from, and the command that made it.
"""

from pathlib import Path

from ..traces import TraceRequest, read_columns
from .draw import synthesize
from .trace_model import learn_model

SAMPLE_TRACE = Path(__file__).parents[1] / "data" / "sample_trace.jsonl"


def sample_traffic(requests: int) -> list[TraceRequest]:
    """So many requests like the sample's: its model's, seed 0."""
    return list(synthesize(learn_model(read_columns(SAMPLE_TRACE)), requests))
