"""How long the state machines run: HYPOTHESIS_PROFILE=thorough makes it 20 times as long."""

from collections.abc import Iterable
from typing import Any

from hypothesis import settings

TIMES = {"": 1, "default": 1, "thorough": 20}


def lengthen(machines: Iterable[Any], profile: str) -> None:
    """Give test cases of state machines their runs; ValueError if there is no such profile."""
    if profile not in TIMES:
        known = ", ".join(filter(None, TIMES))
        raise ValueError(f"HYPOTHESIS_PROFILE={profile}: it is one of {known}")
    if TIMES[profile] == 1:
        return
    for machine in machines:
        own = machine.settings
        machine.settings = settings(own, max_examples=own.max_examples * TIMES[profile])
