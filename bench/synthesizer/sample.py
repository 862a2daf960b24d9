"""Samples of traffic: requests drawn from a model, and the trace that ships with the package.

bench/data/README.md says what that trace was learned from, and the command that made it.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from ..traces import TraceRequest, read_columns
from .markov_walk import walk_markov
from .scaling import Scaling
from .session_walk import walk_sessions
from .streams import Streams
from .trace_model import TraceModel, learn_model

SAMPLE_TRACE = Path(__file__).parents[1] / "data" / "sample_trace.jsonl"
ModelKind = Literal["sessions", "markov"]
KINDS: tuple[ModelKind, ...] = get_args(ModelKind)


def synthesize(
    model: TraceModel,
    requests: int,
    *,
    seed: int = 0,
    kind: ModelKind = "sessions",
    scaling: Scaling | None = None,
) -> Iterator[TraceRequest]:
    """Draw `requests` requests, by time from 0: a valid trace of the model's block size.

    Equal arguments give equal requests, on every platform, and fewer requests are the beginning of
    more. Memory grows with the stems and the sessions under way only (of a Markov model: with its
    tree). Raises ConfigError if no prompt fits the scaling's limits.
    """
    streams = Streams(seed)
    scaling = scaling or Scaling()
    times = islice(model.arrivals.times(streams["arrivals"]), requests)
    if kind == "markov":
        return walk_markov(model.markov, model.block_size, times, streams, scaling)
    instant_ms = float(model.arrivals.gaps_ms[0])
    return walk_sessions(model.sessions, model.block_size, times, instant_ms, streams, scaling)


def sample_traffic(requests: int) -> list[TraceRequest]:
    """`requests` requests like those of the sample trace: its model's, seed 0."""
    return list(synthesize(learn_model(read_columns(SAMPLE_TRACE)), requests))
