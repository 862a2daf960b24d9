"""The whole house among peers and networks that fail: seeded runs, real processes.

ADVERSITY_PROFILE=long runs longer and with more seeds, ADVERSITY_SEED=N this one alone, and
ADVERSITY_STEPS=FILE replays the steps that a failure printed. Routers of even seeds hedge;
ADVERSITY_HEDGES=yes or no says otherwise, and is needed to replay steps of such a seed.
"""

from dataclasses import replace
from os import environ
from pathlib import Path
from random import Random

import pytest
from support.adversity.run import run
from support.adversity.schedule import OF_NATS, FaultSpec, Step, schedule_of, steps_of
from support.adversity.seeds import seeds_of
from support.adversity.world import DURABLE

LENGTHS = {"": 10, "long": 60}  # steps of a run
SEEDS = {"": (1, 2), "long": tuple(range(1, 9))}
DURABLE_SEEDS = {"": (3,), "long": (11, 12)}
PROFILE = environ.get("ADVERSITY_PROFILE", "")
HEDGING = ("--hedge-after-s", "0.2")


def schedules(usual: dict[str, tuple[int, ...]]) -> list[str]:
    """What the environment asks for, else the profile's usual seeds: "seed N", or a file's name."""
    if PROFILE not in LENGTHS:
        raise pytest.UsageError(f"ADVERSITY_PROFILE is {PROFILE!r}: leave it out, or say long")
    if file := environ.get("ADVERSITY_STEPS"):
        return [file]
    return [f"seed {seed}" for seed in seeds_of(*usual[PROFILE])]


def seed_of(told: str) -> int | None:
    """The seed of a schedule; None: its steps are in a file."""
    kind, _, seed = told.partition(" ")
    return int(seed) if kind == "seed" else None


def steps(told: str) -> list[Step]:
    seed = seed_of(told)
    return steps_of(Path(told).read_text()) if seed is None else schedule_of(seed, LENGTHS[PROFILE])


def mostly_of_nats(told: str) -> list[Step]:
    """The same with a fault on the way of events in each step."""
    seed = seed_of(told)
    if seed is None:
        return steps(told)
    random = Random(seed)
    changed = []
    for step in steps(told):
        others = [fault for fault in step.faults if fault.name not in OF_NATS]
        fault = FaultSpec(random.choice(OF_NATS), 0, round(random.uniform(0.1, 1.0), 2))
        changed.append(replace(step, faults=(fault, *others)))
    return changed


def hedges(told: str) -> bool:
    """Whether the router of this run hedges."""
    if said := environ.get("ADVERSITY_HEDGES"):
        return said == "yes"
    seed = seed_of(told)
    return seed is not None and seed % 2 == 0


@pytest.mark.parametrize("told", schedules(DURABLE_SEEDS))
async def test_they_hold_where_events_come_from_a_stream(told: str, tmp_path: Path) -> None:
    """More of what concerns the way of events than of the rest."""
    slowest = await run(tmp_path, mostly_of_nats(told), DURABLE, "--event-sources", "jetstream")
    print({name: round(seconds, 2) for name, seconds in slowest.items()})


@pytest.mark.parametrize("told", schedules(SEEDS))
async def test_the_invariants_hold_after_every_step(told: str, tmp_path: Path) -> None:
    slowest = await run(tmp_path, steps(told), *(HEDGING if hedges(told) else ()))
    print({name: round(seconds, 2) for name, seconds in slowest.items()})  # shown by -s
