"""Objectives: what requests ask for, what counts otherwise, and what an answer made of them."""

import math

import pytest

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.errors import ConfigError, InvalidRequestError
from dynamo_router.router.admission.limits import AdmissionConfig
from dynamo_router.router.admission.objectives import (
    MOST_MS,
    NO_OBJECTIVES,
    SLO_ITL_KEY,
    SLO_TTFT_KEY,
    DefaultObjectives,
    Objectives,
    read_objectives,
)

RELATIVE = DefaultObjectives(ttft_ms=None, base_ms=200.0, factor=1.5, itl_ms=25.0)


@pytest.mark.parametrize(
    ("metadata", "asked"),
    [
        (None, NO_OBJECTIVES),
        ([("traceparent", "x")], NO_OBJECTIVES),
        ([(SLO_TTFT_KEY, "350")], Objectives(350.0, None)),
        ([(SLO_TTFT_KEY, "350.5"), (SLO_ITL_KEY, "1e1")], Objectives(350.5, 10.0)),
        ([(SLO_ITL_KEY, "10"), (SLO_ITL_KEY, "20")], Objectives(None, 20.0)),
        ([(SLO_TTFT_KEY, str(MOST_MS))], Objectives(MOST_MS, None)),
    ],
)
def test_metadata_name_objectives(metadata, asked):
    assert read_objectives(metadata) == asked


@pytest.mark.parametrize("key", [SLO_TTFT_KEY, SLO_ITL_KEY])
@pytest.mark.parametrize("value", ["", "soon", "0", "-1", "nan", "inf", "1e9", b"\xff"])
def test_what_makes_no_sense_is_refused_by_name(key, value):
    with pytest.raises(InvalidRequestError, match=key):
        read_objectives([(key, value)])


def test_defaults_grow_with_the_prompt_unless_one_is_set():
    assert RELATIVE.of(NO_OBJECTIVES, 0.4) == Objectives(pytest.approx(800.0), 25.0, True)
    assert RELATIVE.of(NO_OBJECTIVES, None) == Objectives(None, 25.0, True)
    assert RELATIVE.of(Objectives(90.0, None), 0.4) == Objectives(90.0, 25.0)
    assert RELATIVE.of(Objectives(None, 5.0), 0.4) == Objectives(pytest.approx(800.0), 5.0, True)
    fixed = DefaultObjectives(ttft_ms=70.0, base_ms=200.0, factor=1.5, itl_ms=25.0)
    assert fixed.of(NO_OBJECTIVES, 0.4) == Objectives(70.0, 25.0)


@pytest.mark.parametrize(
    ("ttft_s", "itl_s", "missed"),
    [(0.1, 0.02, ""), (0.1001, 0.02, "ttft"), (0.1, 0.0201, "itl"), (9.0, 9.0, "both")],
)
def test_an_answer_misses_what_it_is_later_than(ttft_s, itl_s, missed):
    assert Objectives(100.0, 20.0).missed(ttft_s, itl_s) == missed
    assert NO_OBJECTIVES.missed(ttft_s, itl_s) == ""


@pytest.mark.parametrize("key", ["slo_ttft_ms", "slo_relative_factor", "slo_itl_ms"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_settings_are_above_0_and_finite(key, value):
    with pytest.raises(ConfigError, match=key):
        AdmissionConfig(**{key: value})


def test_a_router_knows_what_a_prompt_takes_on_an_idle_engine_and_explains_its_objectives():
    with KvRouter(KvRouterConfig(block_size=16)) as router:
        router.add_worker(1)
        short, long = (router.limits.objectives(isl, NO_OBJECTIVES) for isl in (100, 100_000))
        assert short.ttft_ms is not None and long.ttft_ms is not None
        assert 200 < short.ttft_ms < 300 and long.ttft_ms > 1000
        told = router.explain([7] * 100).to_dict()["objectives"]
        assert told == {"ttft_ms": short.ttft_ms, "itl_ms": 25.0}
        told = router.explain([7] * 100, asked=Objectives(5.0, 6.0)).to_dict()["objectives"]
        assert told == {"ttft_ms": 5.0, "itl_ms": 6.0}
    with KvRouter(KvRouterConfig(block_size=16, policy="dynamo")) as router:
        assert router.limits.objectives(100, NO_OBJECTIVES) == Objectives(None, 25.0, True)
