"""Fleets and observations: what they refuse."""

import math
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.planner import (
    Fleet,
    Objectives,
    Observation,
    ObservedRequest,
)


def test_fleets_are_counted_by_role() -> None:
    fleet = Fleet(aggregated=1, prefill=2, decode=3)
    assert fleet.cost({"prefill": 4}) == 1 + 8 + 3
    assert fleet.changed("prefill", -5) == Fleet(aggregated=1, decode=3)
    assert str(fleet) == "1 aggregated, 2 prefill, 3 decode"
    assert str(Fleet()) == "no engines"
    with pytest.raises(ValueError, match="-1 aggregated"):
        Fleet(aggregated=-1)


def test_an_observation_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="nan s is at no time"):
        Observation(at=math.nan)


@pytest.mark.parametrize(
    "facts",
    [
        {"arrival_s": math.nan},
        {"prompt_tokens": 0},
        {"output_tokens": -1},
        {"ttft_ms": math.nan},
        {"itl_ms": -1.0},
        {"itl_ms": math.inf},
    ],
)
def test_a_request_that_makes_no_sense_is_none(facts: dict[str, Any]) -> None:
    """Of a negative ITL, the engine model's speed would be a complex number."""
    fine: dict[str, Any] = {"arrival_s": 1.0, "prompt_tokens": 8, "output_tokens": 2}
    ObservedRequest(**fine)
    with pytest.raises(ValueError, match="makes no sense"):
        ObservedRequest(**{**fine, **facts})


@pytest.mark.parametrize(
    "facts", [{"at": math.nan}, {"window_s": math.inf}, {"window_s": -1.0}, {"block_size": 0}]
)
def test_an_observation_that_makes_no_sense_is_none(facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Observation(**{"at": 1.0, **facts})


def test_answers_are_good_within_both_objectives() -> None:
    objectives = Objectives(objective_ttft_ms=100, objective_itl_ms=10)
    good = objectives.good([100, 101, 50, 50, math.nan], [10, 5, 11, math.nan, 5])
    assert good.tolist() == [True, False, False, True, False]


@pytest.mark.parametrize(
    ("key", "value"),
    [("objective_ttft_ms", 0), ("objective_itl_ms", math.inf), ("target", 1.5), ("confidence", 0)],
)
def test_a_bad_objective_is_named(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key):
        Objectives(**{key: value})
