"""The profiles of the state machines."""

from types import SimpleNamespace

import pytest
from hypothesis import settings
from support.machines import lengthen


def machine() -> SimpleNamespace:
    return SimpleNamespace(settings=settings(max_examples=30, stateful_step_count=7, deadline=None))


@pytest.mark.parametrize(("profile", "runs"), [("", 30), ("default", 30), ("thorough", 600)])
def test_a_profile_multiplies_runs_and_nothing_else(profile: str, runs: int) -> None:
    machines = [machine(), machine()]
    lengthen(machines, profile)
    for each in machines:
        assert each.settings.max_examples == runs
        assert each.settings.stateful_step_count == 7 and each.settings.deadline is None


def test_a_profile_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="HYPOTHESIS_PROFILE=long: it is one of default, thorough"):
        lengthen([machine()], "long")
