"""Whether a prompt is computed where its answer is decoded, or by a prefill worker before. Pure.

Entered by `KvRouter.place_pair`, which gathers the facts and books both legs. A leg is the part of
a request that one worker runs: the prompt up to the first token, or all that follows it.
"""

from .config import DISAGG_MODES, DISAGG_POLICIES, DisaggConfig
from .links import LinkEstimate
from .rule import (
    REASONS,
    Landing,
    LocalForecast,
    PairFacts,
    PairRule,
    RemoteForecast,
    Verdict,
    judge,
)
