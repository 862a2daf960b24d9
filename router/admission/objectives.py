"""Objectives: within which time to its first token, and between tokens, a request wants its answer.

A request says so in its metadata; where it does not, settings do. A fixed TTFT is out of reach for
a long prompt wherever it goes, so the default grows with what the prompt takes on an idle engine.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from ...base.errors import InvalidRequestError

SLO_TTFT_KEY, SLO_ITL_KEY = "x-dynamo-slo-ttft-ms", "x-dynamo-slo-itl-ms"
"""Request metadata: milliseconds to its first token, and between tokens on average, at most."""
SLO_KEYS = frozenset((SLO_TTFT_KEY, SLO_ITL_KEY))

MOST_MS = 24 * 3600e3
"""Longer than a day is no objective but a mistake in the unit."""


class Objectives(msgspec.Struct, frozen=True):
    """In milliseconds; None: not given, or not known."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    is_default_ttft: bool = False
    """neither the request nor a setting named its TTFT: nothing is refused for the sake of it"""

    def to_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return {"ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms}

    def missed(self, ttft_s: float, itl_s: float) -> str:
        """Which of them an answer with these latencies missed: ttft, itl, both, or nothing."""
        late = self.ttft_ms is not None and ttft_s * 1e3 > self.ttft_ms
        slow = self.itl_ms is not None and itl_s * 1e3 > self.itl_ms
        if late and slow:
            return "both"
        return "ttft" if late else "itl" if slow else ""


NO_OBJECTIVES = Objectives()


@dataclass(frozen=True, kw_only=True)
class DefaultObjectives:
    """What counts where a request says nothing."""

    ttft_ms: float | None  # None: base_ms + factor * the prompt's time on an idle engine
    base_ms: float
    factor: float
    itl_ms: float

    def of(self, asked: Objectives, cold_s: float | None) -> Objectives:
        """A request's objectives. `cold_s`: what its prompt takes on an idle engine that has none
        of it cached; None: not known, so that there is no default for its TTFT."""
        ttft_ms, is_default = asked.ttft_ms, asked.is_default_ttft
        if ttft_ms is None:
            ttft_ms, is_default = self.ttft_ms, self.ttft_ms is None
        if ttft_ms is None and cold_s is not None:
            ttft_ms = self.base_ms + self.factor * cold_s * 1e3
        itl_ms = self.itl_ms if asked.itl_ms is None else asked.itl_ms
        return Objectives(ttft_ms, itl_ms, is_default)


def read_objectives(metadata: Iterable[tuple[str, str | bytes]] | None) -> Objectives:
    """What a call's metadata ask for; InvalidRequestError, naming the key, if that makes no sense.

    Of a key that comes twice the last one counts.
    """
    asked = NO_OBJECTIVES
    for key, value in metadata or ():
        if key not in SLO_KEYS:
            continue
        if key == SLO_TTFT_KEY:
            asked = replace(asked, ttft_ms=_milliseconds(key, value))
        else:
            asked = replace(asked, itl_ms=_milliseconds(key, value))
    return asked


def _milliseconds(key: str, value: str | bytes) -> float:
    try:
        milliseconds = float(value)
    except ValueError:
        raise InvalidRequestError(f"{key} is no number: {value!r}") from None
    if not (math.isfinite(milliseconds) and 0 < milliseconds <= MOST_MS):
        text = f"{key} must be above 0 and at most {MOST_MS:.0f} milliseconds, not {value!r}"
        raise InvalidRequestError(text)
    return milliseconds
