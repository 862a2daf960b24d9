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
from support.adversity.world import DURABLE

LENGTHS = {"": 10, "long": 60}  # steps of a run
SEEDS = {"": (1, 2), "long": tuple(range(1, 9))}
PROFILE = environ.get("ADVERSITY_PROFILE", "")
HEDGING = ("--hedge-after-s", "0.2")


def schedules() -> dict[str, list[Step]]:
    """What the environment asks for, by the name that a failure shows."""
    if PROFILE not in LENGTHS:
        raise pytest.UsageError(f"ADVERSITY_PROFILE is {PROFILE!r}: leave it out, or say long")
    if file := environ.get("ADVERSITY_STEPS"):
        return {file: steps_of(Path(file).read_text())}
    seeds = (int(environ["ADVERSITY_SEED"]),) if "ADVERSITY_SEED" in environ else SEEDS[PROFILE]
    return {f"seed {seed}": schedule_of(seed, LENGTHS[PROFILE]) for seed in seeds}


def hedges(told: str) -> bool:
    """Whether the router of this run hedges."""
    if said := environ.get("ADVERSITY_HEDGES"):
        return said == "yes"
    kind, _, seed = told.partition(" ")
    return kind == "seed" and int(seed) % 2 == 0


DURABLE_SEEDS = {"": (3,), "long": (11, 12)}


@pytest.mark.parametrize("seed", DURABLE_SEEDS[PROFILE])
async def test_they_hold_where_events_come_from_a_stream(seed: int, tmp_path: Path) -> None:
    """More of what concerns the way of events than of the rest."""
    random = Random(seed)
    steps = []
    for step in schedule_of(seed, LENGTHS[PROFILE]):
        others = [fault for fault in step.faults if fault.name not in OF_NATS]
        fault = FaultSpec(random.choice(OF_NATS), 0, round(random.uniform(0.1, 1.0), 2))
        steps.append(replace(step, faults=(fault, *others)))
    slowest = await run(tmp_path, steps, DURABLE, "--event-sources", "jetstream")
    print({name: round(seconds, 2) for name, seconds in slowest.items()})


@pytest.mark.parametrize("told", schedules())
async def test_the_invariants_hold_after_every_step(told: str, tmp_path: Path) -> None:
    slowest = await run(tmp_path, schedules()[told], *(HEDGING if hedges(told) else ()))
    print({name: round(seconds, 2) for name, seconds in slowest.items()})  # shown by -s
