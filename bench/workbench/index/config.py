"""What the index benchmark measures."""

from dataclasses import dataclass

from ....process.setting_checks import require_at_least
from ....process.settings import bad_setting, option
from .rivals import available_adapters

PARTS = ("phases", "drained", "memory", "growth", "events")


@dataclass(frozen=True, kw_only=True)
class IndexBenchConfig:
    """What to measure. Raises ConfigError, naming the key, on a bad value."""

    trace: str | None = option(None, "A trace to take prompts from; not given: synthesized ones.")
    requests: int = option(2000, "Use the first N requests of the trace.")
    block_size: tuple[int, ...] = option((64, 16), "Tokens in a block; may be repeated.")
    workers: tuple[int, ...] = option((64,), "How many workers hold blocks; may be repeated.")
    cache_tokens: int = option(500_000, "Size of a worker's cache in the mixed phases.")
    contender: tuple[str, ...] = option(
        (),
        "Measure only these: arrays, lists, events, dynamo; may be repeated. Not given: all.",
    )
    part: tuple[str, ...] = option(
        (), f"Only this part: {', '.join(PARTS)}; may be repeated. Not given: all."
    )
    max_blocks: int = option(50_000_000, "Blocks in the tree of the growth part.")
    max_workers: int = option(4096, "Workers of the growth part.")
    event_seconds: float = option(5.0, "How long events run through NATS, each of two loads.")
    seed: int = option(7, "Which prompt goes to which worker, and which hashes are invented.")
    rounds: int = option(5, "Rounds over all indexes; medians of them are reported.")
    core: int | None = option(None, "Pin this process to a CPU core (steadier, and fairer).")
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')
    plot: str | None = option(None, "Draw the curves of the growth part into this folder.")

    def __post_init__(self) -> None:
        require_at_least(self, 1, "requests", "rounds", "cache_tokens", "block_size", "workers")
        require_at_least(self, 1000, "max_blocks")
        require_at_least(self, 8, "max_workers")
        require_at_least(self, 0, "seed")
        if not 0 < self.event_seconds <= 3600:
            raise bad_setting("event_seconds", f"{self.event_seconds} must be above 0, to 3600")
        for key, known in (("contender", tuple(available_adapters())), ("part", PARTS)):
            for name in getattr(self, key):
                if name not in known:
                    listed = ", ".join(known)
                    raise bad_setting(key, f"{name!r} is not one of those here: {listed}")

    @property
    def parts(self) -> tuple[str, ...]:
        """What is to be measured, in the order in which it is."""
        return tuple(part for part in PARTS if not self.part or part in self.part)

    @property
    def indexes(self) -> tuple[str, ...]:
        """The names of those that are timed."""
        return self.contender or tuple(available_adapters())
