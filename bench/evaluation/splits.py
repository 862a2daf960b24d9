"""What policies are evaluated on: traffic, fleets, model errors, conditions, seeds, in splits.

Chosen once, before tuning, and held apart: `train` is there to tune on, `validate` to decide
between what was tuned, `report` to measure it. No seed and no value of any parameter is in
two splits; a test holds that. Tuning asks `require_tunable`, which refuses the report's traffic.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...engines.mocker import TierConfig
from ...process.settings import bad_setting
from ..traces import TraceRequest
from ..traffic import Bursts, Chunks, Jobs, TrafficSpec
from .conditions import PLANS, Condition

TRAIN, VALIDATE, REPORT = SPLIT_NAMES = ("train", "validate", "report")
TUNABLE = (TRAIN, VALIDATE)

# By family and parameter: the values of train, validate and report. Lengths in tokens, times in s.
FAMILIES: Mapping[str, Mapping[str, tuple[Any, Any, Any]]] = {
    "conversation": {
        "rate": (6.2, 6.6, 4.8),
        "prefixes": (6, 9, 4),
        "popularity": (0.8, 1.0, 0.6),
        "prefix_tokens": (1300, 700, 1900),
        "prefix_spread": (0.3, 0.5, 0.4),
        "turns": (4.0, 3.4, 4.6),
        "user_tokens": (380, 450, 320),
        "user_spread": (1.0, 0.9, 1.1),
        "output_tokens": (260, 230, 290),
        "output_spread": (0.7, 0.8, 0.75),
        "pause_s": (30.0, 24.0, 40.0),
        "pause_spread": (0.9, 1.0, 0.8),
    },
    "agents": {
        "rate": (3.4, 3.7, 3.0),
        "prefixes": (3, 5, 4),
        "popularity": (0.5, 0.9, 0.7),
        "prefix_tokens": (6000, 4500, 7500),
        "prefix_spread": (0.25, 0.35, 0.3),
        "turns": (9.0, 7.5, 11.0),
        "user_tokens": (900, 1100, 750),
        "user_spread": (1.1, 1.0, 1.2),
        "output_tokens": (90, 120, 75),
        "output_spread": (0.8, 0.7, 0.9),
        "pause_s": (1.5, 2.2, 1.0),
        "pause_spread": (0.8, 0.9, 1.0),
        "forks": (0.03, 0.04, 0.025),
    },
    "documents": {
        "rate": (3.6, 4.0, 2.5),
        "prefixes": (160, 220, 120),
        "popularity": (0.9, 0.8, 1.0),
        "prefix_tokens": (9000, 7000, 11_000),
        "prefix_spread": (0.6, 0.7, 0.5),
        "turns": (2.4, 3.0, 2.0),
        "user_tokens": (90, 60, 120),
        "user_spread": (0.6, 0.7, 0.5),
        "output_tokens": (170, 140, 200),
        "output_spread": (0.6, 0.5, 0.7),
        "pause_s": (20.0, 14.0, 27.0),
        "pause_spread": (0.8, 0.7, 0.9),
    },
    "batch": {
        "rate": (4.6, 5.2, 4.0),
        "prefixes": (12, 20, 8),
        "popularity": (0.4, 0.2, 0.6),
        "prefix_tokens": (1800, 1200, 2600),
        "prefix_spread": (0.4, 0.5, 0.3),
        "turns": (1.0, 1.05, 1.02),
        "user_tokens": (1200, 900, 1600),
        "user_spread": (0.6, 0.7, 0.5),
        "output_tokens": (220, 180, 150),
        "output_spread": (0.5, 0.6, 0.4),
        "pause_s": (5.0, 6.0, 7.0),
        "pause_spread": (0.5, 0.6, 0.7),
        "job_requests": (12.0, 9.0, 16.0),
    },
    "bursts": {
        "rate": (7.0, 7.6, 6.4),
        "prefixes": (5, 7, 10),
        "popularity": (0.8, 0.6, 1.0),
        "prefix_tokens": (900, 1500, 1100),
        "prefix_spread": (0.3, 0.4, 0.5),
        "turns": (2.4, 1.9, 3.0),
        "user_tokens": (500, 650, 420),
        "user_spread": (0.9, 0.8, 1.0),
        "output_tokens": (180, 150, 210),
        "output_spread": (0.7, 0.6, 0.8),
        "pause_s": (12.0, 16.0, 9.0),
        "pause_spread": (0.8, 0.9, 0.7),
        "bursts": (Bursts(factor=4, on_s=9, period_s=60), Bursts(factor=3, on_s=12, period_s=45),
                   Bursts(factor=5, on_s=8, period_s=50)),
    },
    "tenants": {
        "rate": (6.6, 5.6, 6.0),
        "prefixes": (40, 25, 60),
        "popularity": (1.1, 0.9, 1.0),
        "prefix_tokens": (4000, 5500, 3000),
        "prefix_spread": (0.6, 0.5, 0.7),
        "turns": (1.6, 1.4, 1.9),
        "user_tokens": (260, 350, 200),
        "user_spread": (0.8, 0.9, 1.0),
        "output_tokens": (200, 170, 230),
        "output_spread": (0.6, 0.7, 0.8),
        "pause_s": (15.0, 20.0, 11.0),
        "pause_spread": (0.7, 0.8, 0.9),
    },
    "coders": {
        "rate": (1.05, 1.15, 0.95),
        "prefixes": (3, 4, 2),
        "popularity": (0.4, 0.6, 0.5),
        "prefix_tokens": (17_000, 14_000, 20_000),
        "prefix_spread": (0.2, 0.3, 0.25),
        "turns": (24.0, 20.0, 28.0),
        "user_tokens": (1500, 1700, 1300),
        "user_spread": (1.2, 1.1, 1.3),
        "output_tokens": (160, 190, 140),
        "output_spread": (0.8, 0.9, 0.7),
        "pause_s": (4.0, 5.0, 3.0),
        "pause_spread": (1.0, 0.9, 1.1),
        "max_prompt_tokens": (100_000, 90_000, 110_000),
    },
    "heavy-tail": {
        "rate": (3.6, 3.95, 3.3),
        "prefixes": (8, 12, 6),
        "popularity": (0.7, 0.9, 0.6),
        "prefix_tokens": (600, 400, 800),
        "prefix_spread": (0.3, 0.4, 0.5),
        "turns": (1.3, 1.2, 1.4),
        "user_tokens": (3600, 3200, 4200),
        "user_spread": (1.8, 1.7, 1.9),
        "output_tokens": (260, 230, 290),
        "output_spread": (1.0, 1.1, 0.9),
        "pause_s": (20.0, 16.0, 26.0),
        "pause_spread": (0.8, 0.9, 0.7),
        "max_prompt_tokens": (100_000, 90_000, 110_000),
    },
    "flash-crowd": {
        "rate": (3.9, 4.2, 3.6),
        "prefixes": (30, 40, 24),
        "popularity": (2.2, 2.0, 2.4),
        "prefix_tokens": (7000, 6000, 8000),
        "prefix_spread": (0.3, 0.35, 0.25),
        "turns": (1.3, 1.2, 1.4),
        "user_tokens": (120, 150, 100),
        "user_spread": (0.8, 0.7, 0.9),
        "output_tokens": (200, 180, 220),
        "output_spread": (0.7, 0.6, 0.8),
        "pause_s": (10.0, 8.0, 13.0),
        "pause_spread": (0.8, 0.7, 0.9),
        "bursts": (Bursts(factor=4, on_s=10, period_s=60), Bursts(factor=3, on_s=13, period_s=50),
                   Bursts(factor=5, on_s=9, period_s=55)),
    },
    "thrash": {
        "rate": (3.4, 3.7, 3.1),
        "prefixes": (480, 560, 420),
        "popularity": (0.3, 0.4, 0.2),
        "prefix_tokens": (6000, 5000, 7000),
        "prefix_spread": (0.4, 0.5, 0.3),
        "turns": (2.6, 2.2, 3.0),
        "user_tokens": (300, 350, 250),
        "user_spread": (0.8, 0.7, 0.9),
        "output_tokens": (180, 160, 200),
        "output_spread": (0.7, 0.8, 0.6),
        "pause_s": (25.0, 20.0, 30.0),
        "pause_spread": (0.8, 0.9, 0.7),
    },
    "rag": {
        "rate": (4.0, 4.3, 3.7),
        "prefixes": (250, 320, 200),
        "popularity": (1.0, 0.8, 1.2),
        "prefix_tokens": (2600, 2200, 3000),
        "prefix_spread": (0.4, 0.5, 0.3),
        "turns": (1.05, 1.1, 1.02),
        "user_tokens": (2400, 2000, 2800),
        "user_spread": (0.4, 0.3, 0.5),
        "output_tokens": (230, 200, 260),
        "output_spread": (0.7, 0.6, 0.8),
        "pause_s": (12.0, 9.0, 15.0),
        "pause_spread": (0.7, 0.8, 0.9),
    },
    "volleys": {
        "rate": (24.0, 26.0, 22.0),
        "prefixes": (2, 3, 4),
        "popularity": (0.3, 0.2, 0.4),
        "prefix_tokens": (1, 2, 3),
        "prefix_spread": (0.1, 0.2, 0.3),
        "turns": (1.0, 1.01, 1.02),
        "user_tokens": (45, 40, 50),
        "user_spread": (0.2, 0.25, 0.3),
        "output_tokens": (110, 120, 100),
        "output_spread": (0.5, 0.6, 0.4),
        "pause_s": (5.0, 6.0, 7.0),
        "pause_spread": (0.5, 0.6, 0.7),
        "job_requests": (16.0, 12.0, 20.0),
    },
    "rag-chunks": {
        "rate": (4.8, 5.1, 4.5),
        "prefixes": (2, 3, 4),
        "popularity": (0.4, 0.3, 0.5),
        "prefix_tokens": (640, 448, 832),
        "prefix_spread": (0.2, 0.3, 0.25),
        "turns": (1.3, 1.2, 1.4),
        "user_tokens": (120, 150, 100),
        "user_spread": (0.6, 0.5, 0.7),
        "output_tokens": (220, 200, 250),
        "output_spread": (0.7, 0.6, 0.8),
        "pause_s": (14.0, 11.0, 18.0),
        "pause_spread": (0.8, 0.7, 0.9),
        "chunks": (Chunks(pool=60, popularity=1.2, taken=5, tokens=768),
                   Chunks(pool=80, popularity=1.1, taken=4, tokens=896),
                   Chunks(pool=50, popularity=1.3, taken=6, tokens=640)),
    },
    "drifting-tenants": {
        "rate": (6.2, 5.8, 5.4),
        "prefixes": (200, 160, 240),
        "popularity": (1.1, 1.0, 1.2),
        "prefix_tokens": (3500, 4500, 2800),
        "prefix_spread": (0.6, 0.5, 0.7),
        "turns": (1.7, 1.5, 2.0),
        "user_tokens": (250, 320, 200),
        "user_spread": (0.8, 0.9, 1.0),
        "output_tokens": (210, 180, 240),
        "output_spread": (0.6, 0.7, 0.8),
        "pause_s": (14.0, 18.0, 11.0),
        "pause_spread": (0.7, 0.8, 0.9),
        "drift_s": (3.0, 4.0, 2.0),
    },
    "batch-beside-chat": {
        "rate": (4.6, 5.0, 4.2),
        "prefixes": (10, 14, 7),
        "popularity": (0.6, 0.5, 0.7),
        "prefix_tokens": (1500, 1100, 2000),
        "prefix_spread": (0.3, 0.4, 0.5),
        "turns": (3.0, 2.6, 3.4),
        "user_tokens": (300, 360, 260),
        "user_spread": (0.8, 0.9, 0.7),
        "output_tokens": (240, 210, 270),
        "output_spread": (0.7, 0.6, 0.8),
        "pause_s": (16.0, 13.0, 20.0),
        "pause_spread": (0.8, 0.7, 0.9),
        "jobs": (Jobs(share=0.4, requests=40.0, user_tokens=2600, output_tokens=120),
                 Jobs(share=0.5, requests=30.0, user_tokens=2200, output_tokens=140),
                 Jobs(share=0.35, requests=50.0, user_tokens=3000, output_tokens=100)),
    },
    "reasoning": {
        "rate": (0.9, 0.98, 0.82),
        "prefixes": (4, 6, 3),
        "popularity": (0.5, 0.7, 0.4),
        "prefix_tokens": (500, 350, 700),
        "prefix_spread": (0.3, 0.4, 0.2),
        "turns": (1.8, 1.6, 2.1),
        "user_tokens": (400, 480, 340),
        "user_spread": (1.0, 0.9, 1.1),
        "output_tokens": (2200, 1900, 2500),
        "output_spread": (0.9, 0.8, 1.0),
        "pause_s": (30.0, 24.0, 36.0),
        "pause_spread": (0.8, 0.9, 0.7),
    },
}  # fmt: skip
NO_HISTORY = ("documents",)  # a question about a document does not repeat those before it


class FleetSize(NamedTuple):
    """Engines, the KV-cache blocks of each, and the load in parts of a family's rate."""

    workers: int
    num_gpu_blocks: int
    load: float

    def __str__(self) -> str:
        return f"{self.workers} x {self.num_gpu_blocks} blocks, load {self.load:g}"


# The first is where model errors are tried and capacity is looked for.
FLEETS: Mapping[str, tuple[FleetSize, ...]] = {
    TRAIN: (FleetSize(4, 4096, 0.72), FleetSize(8, 8192, 1.0)),
    VALIDATE: (FleetSize(3, 5120, 0.8), FleetSize(10, 3072, 0.6)),
    REPORT: (FleetSize(5, 3584, 0.68), FleetSize(12, 6144, 1.05)),
}
# What a fleet has that a policy's model of it does not: settings of the simulation.
ERRORS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "attention": {"attention_us_per_ktoken2": (350.0, 700.0, 500.0)},
    "late-events": {"event_delay_ms": (20_000.0, 90_000.0, 60_000.0)},
    "hidden-tiers": {
        "tiers": tuple(
            TierConfig(host_blocks=blocks, hide_tiers=True) for blocks in (16_384, 12_288, 14_336)
        ),
    },
    "no-events": {"kv_events": (False, False, False)},
    "slow-worker": {"worker_speeds": ("1,1,0.5,1", "0.4,1,1", "1,0.33,1,1,1")},
    "half-slow": {"worker_speeds": ("1,0.6,1,0.6", "0.55,1,0.55", "0.5,1,0.5,1,1")},
    "untold-facts": {
        "engine_facts": (False, False, False),
        "max_num_batched_tokens": (4096, 3072, 2048),
        "num_gpu_blocks": (3072, 2560, 2048),
    },
}
SEEDS: Mapping[str, tuple[int, ...]] = {
    TRAIN: (101, 102, 103, 104),
    VALIDATE: (201, 202, 203, 204),
    REPORT: (301, 302, 303, 304),
}
# Block ids of a split's traffic begin here, so that a file of it shows where it comes from.
FIRST_IDS: Mapping[str, int] = {TRAIN: 1 << 60, VALIDATE: 1 << 61, REPORT: 1 << 62}


@dataclass(frozen=True)
class Split:
    """One of the splits, as what it is run from."""

    name: str
    seeds: tuple[int, ...]
    fleets: tuple[FleetSize, ...]
    traffic: Mapping[str, TrafficSpec]
    errors: Mapping[str, Mapping[str, Any]]
    conditions: Mapping[str, Mapping[str, Condition]]  # by name and family, in the first fleet

    @property
    def first_id(self) -> int:
        """The lowest block id of its traffic."""
        return FIRST_IDS[self.name]


def split_of(name: str) -> Split:
    """The split of this name; ConfigError if there is none."""
    if name not in SPLIT_NAMES:
        raise bad_setting("split", f"{name!r} is none of {', '.join(SPLIT_NAMES)}")
    place = SPLIT_NAMES.index(name)
    traffic = {
        family: TrafficSpec(
            family=family,
            history=family not in NO_HISTORY,
            **{key: values[place] for key, values in parameters.items()},
        )
        for family, parameters in FAMILIES.items()
    }
    errors = {
        kind: {key: values[place] for key, values in settings.items()}
        for kind, settings in ERRORS.items()
    }
    conditions = PLANS[name].conditions(FLEETS[name][0].num_gpu_blocks)
    return Split(name, SEEDS[name], FLEETS[name], traffic, errors, conditions)


def require_tunable(source: str, requests: Iterable[TraceRequest]) -> None:
    """ConfigError if any of the requests is the report's traffic, in whatever file it stands."""
    low = FIRST_IDS[REPORT]
    if any(low <= each < 2 * low for request in requests for each in request.hash_ids[-1:]):
        text = f"{source} is traffic of the report: to tune on it would make the report worthless"
        raise bad_setting("trace", text)
