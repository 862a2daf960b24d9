"""Table: a family of metrics with many samples, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

SLICE_S = 0.001
"""Work on a page of metrics, in seconds, after which other tasks get a turn."""


@dataclass(frozen=True)
class Table:
    """A family with many samples, as columns: no object is made for each of them.

    `labels` are the samples' labels as text, sorted by name; `values` are numbers, or (count, sum)
    for a summary. Neither label values nor `help` may need escaping.
    """

    name: str
    """without the _total of a counter"""
    kind: Literal["gauge", "counter", "summary"]
    help: str
    labels: Sequence[str]
    values: Sequence[Any]

    @property
    def sample_names(self) -> tuple[str, ...]:
        """Of its samples."""
        if self.kind == "summary":
            return f"{self.name}_count", f"{self.name}_sum"
        return (f"{self.name}_total" if self.kind == "counter" else self.name,)
