"""When requests come: the instants of a trace in runs, so that bursts stay bursts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .streams import Stream, passes

RUN = 16  # instants that are kept together: bursts and lulls longer than that are drawn anew
HELD = 8  # runs to draw the next one from: a trace's slow course (day and night) is kept


@dataclass(frozen=True, eq=False)
class ArrivalProcess:
    """The instants of a trace in their order: ms since the one before, and requests at each.

    The first has no instant before it; its gap is the median one, and joins one pass to the next.
    """

    gaps_ms: NDArray[np.float64]
    counts: NDArray[np.int64]

    @property
    def span_ms(self) -> float:
        """From the first instant to the last."""
        return float(self.gaps_ms[1:].sum())

    def times(self, stream: Stream) -> Iterator[float]:
        """Arrivals for ever, in ms from 0, ascending. Every pass has each instant exactly once."""
        gaps, counts = self.gaps_ms.tolist(), self.counts.tolist()
        runs = [range(at, min(at + RUN, len(gaps))) for at in range(0, len(gaps), RUN)]
        now = None
        for run in passes(runs, stream, HELD):
            for instant in run:
                now = 0.0 if now is None else now + gaps[instant]
                for _ in range(counts[instant]):
                    yield now


def learn_arrivals(timestamps_ms: NDArray[np.float64]) -> ArrivalProcess:
    """The arrivals at these times, which ascend."""
    instants, counts = np.unique(timestamps_ms, return_counts=True)
    gaps = np.diff(instants)
    median = float(np.median(gaps)) if len(gaps) else 0.0
    return ArrivalProcess(np.concatenate([[median], gaps]), counts.astype(np.int64))
