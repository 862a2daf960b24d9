"""Goodput: which answers are good, and that stricter objectives find no more of them."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.load.client import Outcome
from dynamo_router.bench.load.stats import LoadStats
from dynamo_router.bench.replay import ReplayConfig
from dynamo_router.bench.results import Goodput, ObjectiveConfig
from dynamo_router.bench.simulation import idle_engine_ms

milliseconds = st.floats(0, 1e5)
answers = st.lists(st.tuples(milliseconds, milliseconds, milliseconds), max_size=20)


def goodput(config: ObjectiveConfig, sent: int, rows: list[tuple[float, float, float]]) -> Goodput:
    ttft, itl, cold = ([row[i] for row in rows] for i in range(3))
    return config.goodput(sent, ttft_ms=ttft, itl_ms=itl, cold_ms=cold)


def test_an_answer_is_good_by_both_of_its_latencies_or_not_at_all() -> None:
    rows = [
        (1000.0, 50.0, 0.0),  # good by the absolute objective, at its very bounds
        (1000.1, 1.0, 1e6),  # long, and so good by the relative one alone
        (350.0, 25.0, 100.0),  # 200 + 1.5 x 100: good by both
        (350.1, 50.1, 100.0),
    ]
    assert goodput(ObjectiveConfig(), 5, rows) == Goodput(2 / 5, 2 / 5)
    assert goodput(ObjectiveConfig(), 0, []) == Goodput()
    one_token = [(1.0, float("nan"), 1.0)]
    assert goodput(ObjectiveConfig(), 1, one_token) == Goodput(1.0, 1.0)


@given(rows=answers, lost=st.integers(1, 5), key=st.sampled_from(fields(ObjectiveConfig)))
def test_stricter_objectives_and_lost_requests_never_make_more_good(rows, lost, key) -> None:
    config = ObjectiveConfig()
    found = goodput(config, len(rows) + lost, rows)
    stricter = replace(config, **{key.name: getattr(config, key.name) / 2})
    less = goodput(stricter, len(rows) + lost, rows)
    assert found.absolute is not None and found.relative is not None
    assert less.absolute is not None and less.relative is not None
    assert less.absolute <= found.absolute < 1 and less.relative <= found.relative < 1


@pytest.mark.parametrize("key", [each.name for each in fields(ObjectiveConfig)])
def test_an_objective_that_nothing_meets_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        ObjectiveConfig(**{key: 0.0})


def test_live_answers_are_judged_by_their_own_itl_and_their_prompts_length() -> None:
    config = ReplayConfig(trace="t", target="127.0.0.1:1")
    cold_ms = float(idle_engine_ms(config.simulation.engine_config(), [20_000])[0])
    stats = LoadStats()
    for ttft_ms, itl_ms in ((200 + 1.4 * cold_ms, 24.0), (200 + 1.6 * cold_ms, 24.0), (9.0, 60.0)):
        e2e_ms = ttft_ms + 10 * itl_ms
        stats.add(Outcome(input_tokens=20_000, output_tokens=11, ttft_ms=ttft_ms, e2e_ms=e2e_ms))
    stats.add(Outcome(code="UNAVAILABLE"))
    found = stats.run(1.0, judge=config.goodput).goodput
    assert found.relative == 1 / 4
    assert stats.run(1.0).goodput == Goodput()
