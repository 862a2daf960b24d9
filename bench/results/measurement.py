"""The harness of the benchmarks: variants measured in turn, round by round, and reported.

A benchmark is its settings, a function of them that measures, and its tables.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from rich.console import RenderableType

from .environment import pin_to_core, unpin
from .output import Output
from .summary import spread

Figures = Mapping[str, float]
Variant = TypeVar("Variant", bound=Hashable)


class Settings(Protocol):
    """Settings of a benchmark; `core` is one of them where it runs in this process alone."""

    @property
    def json(self) -> str | None: ...


Config = TypeVar("Config", bound=Settings)
LOCAL = ("json", "dynamo", "envoy")
"""Settings that say where something is on this machine, which results leave out."""


class Measurement(Generic[Variant]):
    """What the rounds showed: of each variant, each figure's value in each round."""

    def __init__(self) -> None:
        self._rounds: dict[Variant, dict[str, list[float]]] = {}

    def add(self, variant: Variant, figures: Figures) -> None:
        """One more round of a variant."""
        of_variant = self._rounds.setdefault(variant, {})
        for name, value in figures.items():
            of_variant.setdefault(name, []).append(value)

    def spread(self, variant: Variant) -> dict[str, dict[str, float]]:
        """Each figure's median, and how far the rounds lie apart."""
        return {name: spread(values) for name, values in self._rounds[variant].items()}

    def spreads(self) -> dict[Variant, dict[str, dict[str, float]]]:
        """The same of every variant, in the order in which they were first measured."""
        return {variant: self.spread(variant) for variant in self._rounds}


def turns(
    variants: Iterable[Variant], rounds: int, *, warm_up: int = 0
) -> Iterator[tuple[Sequence[Variant], bool]]:
    """The order of the variants in each round, and whether it counts: not if it is to warm up.

    Another variant begins each round, so that what a round heats up or fills favours none.
    """
    order = deque(variants)
    for round in range(-warm_up, rounds):
        yield tuple(order), round >= 0
        order.rotate(-1)


def measure_in_turns(
    variants: Mapping[Variant, Callable[[], Figures]], rounds: int, *, warm_up: int = 0
) -> Measurement[Variant]:
    """Call each variant once a round: it measures that round, and returns its figures."""
    measured = Measurement[Variant]()
    for order, counts in turns(variants, rounds, warm_up=warm_up):
        for variant in order:
            figures = variants[variant]()
            if counts:
                measured.add(variant, figures)
    return measured


@dataclass(frozen=True)
class Benchmark(Generic[Config]):
    """A command that measures: its name, what it measures, and how that is shown."""

    name: str
    measure: Callable[[Config], Mapping[str, Any]]
    tables: Callable[[Mapping[str, Any]], Iterable[RenderableType]]

    def __call__(self, config: Config) -> int:
        """Pin, measure, show the tables, write the JSON: the command's exit code.

        The JSON has the settings under "config", beside what `measure` returns.
        """
        output = Output(config.json)
        core: int | None = getattr(config, "core", None)
        if core is not None:
            pin_to_core(core)
        try:
            measured = self.measure(config)
        finally:
            unpin()
        result = {"benchmark": self.name, "config": settings_of(config), **measured}
        for table in self.tables(result):
            output.print(table)
        output.write(result)
        return 0


def settings_of(config: Any) -> dict[str, Any]:
    """The settings of a benchmark as its results have them."""
    return {key: value for key, value in asdict(config).items() if key not in LOCAL}
