"""The cells of an evaluation: a family of traffic in a fleet, perhaps with a model error."""

from typing import Any, NamedTuple

from ..simulation import CapacityConfig, SimulationConfig
from ..traffic import TRAFFIC_BLOCK_SIZE
from .splits import FleetSize, Split

QUICK_REQUESTS, REQUESTS = 400, 1500
QUICK_SEEDS, SEEDS_OF_A_SPLIT = 2, 4


class EvaluationCell(NamedTuple):
    """What is run; `error` is a kind of model error, or "" for none."""

    family: str
    fleet: FleetSize
    error: str = ""

    def __str__(self) -> str:
        text = f"{self.family}, {self.fleet}"
        return f"{text}, {self.error}" if self.error else text


def cells_of(split: Split, *, quick: bool = False) -> list[EvaluationCell]:
    """Every family in every fleet, and in the first fleet with every model error.

    `quick`: in the first fleet alone, and each model error with one family, another for each.
    """
    families, fleet = list(split.traffic), split.fleets[0]
    fleets = split.fleets[:1] if quick else split.fleets
    cells = [EvaluationCell(family, each) for each in fleets for family in families]
    for place, kind in enumerate(split.errors):
        chosen = [families[place % len(families)]] if quick else families
        cells += [EvaluationCell(family, fleet, kind) for family in chosen]
    return cells


def wants_capacity(cell: EvaluationCell, split: Split) -> bool:
    """Whether capacity is looked for there: once for every family, without model errors."""
    return not cell.error and cell.fleet == split.fleets[0]


def simulation_of(cell: EvaluationCell, split: Split, *, capacity: bool) -> SimulationConfig:
    """The settings of the cell's simulation."""
    settings: dict[str, Any] = {
        "block_size": TRAFFIC_BLOCK_SIZE,
        "num_gpu_blocks": cell.fleet.num_gpu_blocks,
        "search": CapacityConfig(capacity=capacity and wants_capacity(cell, split)),
    }
    if cell.error:
        settings |= split.errors[cell.error]
    return SimulationConfig(**settings)


def request_rate(cell: EvaluationCell, split: Split) -> float:
    """Requests a second that arrive in the cell."""
    return split.traffic[cell.family].rate * cell.fleet.workers * cell.fleet.load
