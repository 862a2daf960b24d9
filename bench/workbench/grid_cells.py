"""The cells of a grid of fleets: what varies from one to the next, and what is kept of runs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...engines.mocker import TierConfig
from ..evaluation import Figures
from ..results import read_kept

MODEL_ERRORS: Mapping[str, Mapping[str, Any]] = {
    "attention": {"attention_us_per_ktoken2": 500.0},
    "hidden-tiers": {"tiers": TierConfig(host_blocks=32_768, hide_tiers=True)},
    "late-events": {"event_delay_ms": 60_000.0},
    "no-events": {"kv_events": False},
    "slow-worker": {"worker_speeds": "1,1,1,0.33,1,1,1,1"},
    "untold-facts": {"engine_facts": False, "num_gpu_blocks": 3072},
}
"""What a fleet can have that a policy's model of it does not: settings of the simulation."""


class Cell(NamedTuple):
    """A fleet. `rate` and `cache` are parts of the base's, `error` one of MODEL_ERRORS, or ""."""

    workers: int
    rate: float
    cache: float
    delay_ms: float
    loss: float
    error: str = ""

    @property
    def content(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict()

    def __str__(self) -> str:
        text = f"{self.workers} workers, rate {self.rate:g}, cache {self.cache:g}"
        if self.delay_ms or self.loss:
            text += f", events {self.delay_ms:g} ms late, {self.loss:.0%} lost"
        return f"{text}, {self.error}" if self.error else text


Kept = dict[tuple[Cell, str, int], Figures]  # by cell, policy, seed


def read_runs(path: str) -> Kept:
    """The runs in a file; ConfigError if it has anything else. No file: none."""

    def parse(row: Any) -> tuple[tuple[Cell, str, int], Figures]:
        return (Cell(*row["cell"]), row["policy"], row["seed"]), row["figures"]

    return dict(read_kept(path, parse))
