"""The cells of an evaluation: a family of traffic in a fleet, perhaps with something more."""

from typing import Any, NamedTuple

from ..simulation import CapacityConfig, SimulationConfig
from ..traffic import TRAFFIC_BLOCK_SIZE
from .conditions import Condition
from .splits import FleetSize, Split

QUICK_REQUESTS, REQUESTS = 400, 1500
QUICK_SEEDS, SEEDS_OF_A_SPLIT = 2, 4


class EvaluationCell(NamedTuple):
    """What is run; `error` is a kind of model error, `condition` one of the split's, "" is none."""

    family: str
    fleet: FleetSize
    error: str = ""
    condition: str = ""

    @property
    def content(self) -> dict[str, Any]:
        """For JSON, flat."""
        kinds = {"error": self.error, "condition": self.condition}
        return {"family": self.family, **self.fleet._asdict(), **kinds}

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.family, str(self.fleet), self.error, self.condition)))


def cells_of(split: Split, *, quick: bool = False) -> list[EvaluationCell]:
    """Every family in every fleet, in the first one with every model error, and the conditions.

    `quick`: in the first fleet alone, and each model error with one family, another for each.
    """
    families, fleet = list(split.traffic), split.fleets[0]
    fleets = split.fleets[:1] if quick else split.fleets
    cells = [EvaluationCell(family, each) for each in fleets for family in families]
    for place, kind in enumerate(split.errors):
        chosen = [families[place % len(families)]] if quick else families
        cells += [EvaluationCell(family, fleet, kind) for family in chosen]
    for kind, by_family in split.conditions.items():
        for family, condition in by_family.items():
            blocks = condition.num_gpu_blocks or fleet.num_gpu_blocks
            smaller = fleet._replace(num_gpu_blocks=blocks)
            cells.append(EvaluationCell(family, smaller, condition=kind))
    return cells


def condition_of(cell: EvaluationCell, split: Split) -> Condition:
    """What its condition is, nothing where it has none."""
    return split.conditions[cell.condition][cell.family] if cell.condition else Condition()


def wants_capacity(cell: EvaluationCell, split: Split) -> bool:
    """Whether capacity is looked for there: once for every family, with nothing more."""
    return not (cell.error or cell.condition) and cell.fleet == split.fleets[0]


def simulation_of(cell: EvaluationCell, split: Split, *, capacity: bool) -> SimulationConfig:
    """The settings of the cell's simulation."""
    settings: dict[str, Any] = {
        "block_size": TRAFFIC_BLOCK_SIZE,
        "num_gpu_blocks": cell.fleet.num_gpu_blocks,
        "search": CapacityConfig(capacity=capacity and wants_capacity(cell, split)),
    }
    if cell.error:
        settings |= split.errors[cell.error]
    tiers = condition_of(cell, split).tiers
    if tiers is not None:
        settings["tiers"] = tiers
    return SimulationConfig(**settings)


def request_rate(cell: EvaluationCell, split: Split) -> float:
    """Requests a second that arrive in the cell."""
    load = cell.fleet.load * condition_of(cell, split).load
    return split.traffic[cell.family].rate * cell.fleet.workers * load
