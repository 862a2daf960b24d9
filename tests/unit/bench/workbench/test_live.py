"""The live check compares like with like, and says when it does not agree."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.evaluation import Condition
from dynamo_router.bench.results.report import Run
from dynamo_router.bench.results.summary import Summary
from dynamo_router.bench.traces.trace import read_trace
from dynamo_router.bench.workbench import live
from dynamo_router.bench.workbench.live import (
    LiveConfig,
    Pair,
    agreements,
    run,
    simulate,
    write_traffic,
)

SMALL = LiveConfig(requests=15, workers=2, rounds=2, slowdown=2.0)


def test_slowed_engines_are_the_same_simulation_in_longer_time(tmp_path: Path) -> None:
    """By a policy that knows no times; the forecast begins with some of its own."""
    trace = write_traffic(SMALL, 0, tmp_path)
    slow = simulate(SMALL, "round-robin", trace, 0)
    usual = simulate(replace(SMALL, slowdown=1.0), "round-robin", trace, 0)
    for figure, value in live.FIGURES.items():
        scale = 2.0 if figure in live.TIMES else 1.0
        assert value(slow) == pytest.approx(scale * (value(usual) or 0.0), rel=0.01), figure


def test_every_round_has_traffic_of_its_own(tmp_path: Path) -> None:
    made = [list(read_trace(write_traffic(SMALL, n, tmp_path), trace_block_size=64))
            for n in range(6)]  # fmt: skip
    assert all(one != other for n, one in enumerate(made) for other in made[:n])


def test_a_condition_is_of_both_the_engines_and_their_load(tmp_path: Path) -> None:
    tiered = replace(SMALL, family="agents", condition="near-full-tiers")
    assert tiered.blocks == tiered.simulation().num_gpu_blocks == 960
    assert tiered.simulation().tiers == tiered.conditions.tiers
    flooded = replace(SMALL, requests=100, family="tenants", condition="flood")
    made = list(read_trace(write_traffic(flooded, 0, tmp_path), trace_block_size=64))
    assert {each.tenant for each in made} == {"others", "flood"}
    assert flooded.blocks == SMALL.num_gpu_blocks and SMALL.conditions == Condition()


@pytest.mark.parametrize("late", [1.0, 1.2])
def test_it_fails_where_live_and_simulated_are_too_far_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    async def stretched(config: LiveConfig, mode: str, trace: Path, seed: int) -> Run:
        found = simulate(config, mode, trace, seed)
        assert found.ttft_ms.mean is not None
        return replace(found, ttft_ms=replace(found.ttft_ms, mean=late * found.ttft_ms.mean))

    monkeypatch.setattr(live, "run_live", stretched)
    target = tmp_path / "live.json"
    assert run(replace(SMALL, json=str(target))) == (0 if late == 1 else 1)
    document = json.loads(target.read_text())
    assert document["agrees"] is (late == 1) and document["failed"] == 0
    apart = {(each["mode"], each["figure"]): each["apart"] for each in document["figures"]}
    assert len(apart) == 2 * len(live.FIGURES)
    for (_, figure), value in apart.items():
        expected = late - 1 if figure == "TTFT mean ms" else 0.0
        assert value == pytest.approx(expected, abs=1e-5)


def test_the_spread_of_live_runs_is_told() -> None:
    def at(ttft: float) -> Any:
        return Run(
            mode="kv", policy="forecast", workers=1, seed=0, requests=1, errors=0, rejected=0,
            cached_token_share=0.5, ttft_ms=Summary(ttft), itl_ms=Summary(1.0),
            e2e_ms=Summary(1.0), output_tokens_per_s=1.0, balance_max_over_mean=1.0, wall_s=1.0,
        )  # fmt: skip

    found = agreements([Pair("kv", at(100.0), at(90.0)), Pair("kv", at(100.0), at(130.0))])
    assert found[0][2:] == (100.0, 110.0, 90.0, 130.0)
    assert found[0].apart == pytest.approx(0.1)


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"family": "x"}, "family: 'x' is none of conversation"),
        ({"rounds": 0}, "rounds: 0 must be at least 1"),
        ({"condition": "x"}, "condition: 'x' is not one that it has, with conversation"),
        ({"condition": "x", "family": "tenants"}, "condition: 'x' is not one of flood, with"),
        ({"slowdown": 0.0}, "slowdown: 0.0 must be finite"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LiveConfig(**settings)
