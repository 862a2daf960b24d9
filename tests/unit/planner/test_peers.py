"""What others scale by, at their documented thresholds, and the curves of Dynamo's formulas."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker import EngineConfig
from dynamo_router.planner import (
    Constraints,
    Fleet,
    Objectives,
    Observation,
    ObservedRequest,
    ObservedWorker,
)
from dynamo_router.planner.peers import Dynamo08, Dynamo15, Hpa, Keda, Scaler, Wva
from dynamo_router.planner.profile import Curves, read_curves

OBJECTIVES = Objectives(objective_ttft_ms=1000, objective_itl_ms=20)


def seen(at: float, *facts: dict[str, Any], requests: list[ObservedRequest] | None = None) -> Any:
    workers = [
        ObservedWorker(
            **{
                "worker_id": n,
                "role": "aggregated",
                "state": "serving",
                "age_s": 500.0,
                "served": 9,
                "running": 0,
                "waiting": 0,
                "active_blocks": 0,
                "total_blocks": 100,
                **each,
            }
        )
        for n, each in enumerate(facts)
    ]
    return Observation(at=at, workers=workers, requests=requests, window_s=180.0)


def wanted(rule: Any, observation: Observation) -> int:
    fleet = rule.wanted(observation)[0]
    return int(fleet.aggregated)


def test_hpa_follows_the_mean_beyond_its_tolerance_and_waits_to_shrink() -> None:
    busy = [{"running": 36}, {"running": 36}]
    assert wanted(Hpa("queue", 32.0), seen(0, {"running": 35}, {"running": 35})) == 2
    rule = Hpa("queue", 32.0)
    assert wanted(rule, seen(0, *busy)) == 3
    assert wanted(rule, seen(15, {"running": 1}, {"running": 1}, {"running": 1})) == 3
    assert wanted(rule, seen(301, *[{"running": 1}] * 3)) == 1  # the past is 300 s old
    assert wanted(Hpa("queue", 1.0), seen(0, {"running": 99})) == 5  # at most four more
    starting = [{"running": 50}, {"state": "starting"}]
    assert wanted(Hpa("queue", 32.0), seen(0, *starting)) == 2  # it counts as idle
    assert wanted(Hpa("kv", 0.8), seen(0, {"active_blocks": 100})) == 2


def test_keda_divides_what_waits_by_its_threshold() -> None:
    assert wanted(Keda(5.0), seen(0, {"waiting": 7}, {"waiting": 4})) == 3
    assert wanted(Keda(5.0), seen(0, {"running": 90})) == 1


@pytest.mark.parametrize(
    ("workers", "engines"),
    [
        ([{"active_blocks": 85}], 2),  # every one is saturated
        ([{"waiting": 5}], 2),
        ([{"active_blocks": 75}, {"active_blocks": 10}], 2),  # the spare is enough
        ([{"active_blocks": 72}, {"active_blocks": 74}], 3),  # spare cache below 0.1
        ([{"waiting": 3}, {"waiting": 3}], 3),  # spare queue below 3
        ([{"active_blocks": 20}, {"active_blocks": 20}], 1),
        ([{"active_blocks": 40}, {"active_blocks": 40}], 2),  # one would not keep it
        ([{"active_blocks": 90}, {"state": "starting"}], 2),  # pending: skipped
    ],
)
def test_wva_keeps_spare_cache_and_queue(workers: list[dict[str, Any]], engines: int) -> None:
    assert wanted(Wva(), seen(0, *workers)) == engines


def curves() -> Curves:
    return Curves.of_engine(EngineConfig(max_model_len=0))


def requests(rate: float, **facts: Any) -> list[ObservedRequest]:
    more = {"output_tokens": 100, "ttft_ms": 100.0, "itl_ms": 5.0, **facts}
    return [ObservedRequest(float(at), 1000, **more) for at in np.arange(0, 180, 1 / rate)]


def test_dynamos_formulas_grow_with_demand_and_keep_still_without_data() -> None:
    sizes = []
    for rate in (1.0, 10.0, 40.0):
        rule = Dynamo08(curves(), OBJECTIVES)
        sizes.append(wanted(rule, seen(180.0, {}, requests=requests(rate))))
    assert sizes == sorted(sizes) and sizes[0] == 1 < sizes[-1]
    for kind in (Dynamo08, Dynamo15):
        fleet, why = kind(curves(), OBJECTIVES).wanted(seen(180.0, {}, requests=[]))
        assert fleet is None and why == "no data"
    split = {"role": "prefill"}, {"role": "decode"}
    fleet = Dynamo08(curves(), OBJECTIVES).wanted(seen(180.0, *split, requests=requests(40.0)))[0]
    assert fleet is not None and fleet.prefill >= 1 and fleet.decode >= 1 and not fleet.aggregated


def test_dynamos_load_rule_needs_all_engines_over_the_objective() -> None:
    def of(slow: set[int], engines: int, itl: float = 5.0) -> Observation:
        found = [
            ObservedRequest(
                175.0 + n / 100, 10, 2, (), None, 10.0, 30.0 if w in slow else itl, 0, w
            )
            for n, w in enumerate(range(engines))
        ]
        return seen(180.0, *[{}] * engines, requests=found)  # type: ignore[no-any-return]

    assert wanted(Dynamo15(curves(), OBJECTIVES), of({0, 1}, 2)) == 3
    assert wanted(Dynamo15(curves(), OBJECTIVES), of({0}, 2)) == 2
    assert wanted(Dynamo15(curves(), OBJECTIVES), of(set(), 2)) == 1
    assert wanted(Dynamo15(curves(), OBJECTIVES), of(set(), 2, itl=12.0)) == 2  # one: over 80 %


def test_a_scaler_keeps_budget_and_minimum() -> None:
    constraints = Constraints(engines_max=3, engines_min=2)
    scaler = Scaler(Hpa("queue", 1.0), constraints)
    decision = scaler.observe(seen(0.0, {"running": 50}, {"running": 50}))
    assert decision.after == Fleet(aggregated=3)
    busy = {"running": 50}
    draining = Scaler(Hpa("queue", 1.0), constraints).observe(
        seen(0.0, busy, busy, {"state": "draining"})
    )
    assert draining.after == Fleet(aggregated=2)  # the one that drains has its place still
    idle = Scaler(Hpa("queue", 32.0), constraints).observe(seen(0.0, {}, {}, {}))
    assert idle.after == Fleet(aggregated=2) and len(idle.victims) == 1
    assert not scaler.observe(seen(5.0, {"running": 50}, {"running": 50})).changes  # not due


ARRAYS: dict[str, Any] = {
    "prefill_isl": [1000.0, 4000.0],
    "prefill_ttft": [100.0, 500.0],
    "prefill_thpt_per_gpu": [10_000.0, 8000.0],
    "x_kv_usage": [0.1, 0.5, 0.9],
    "y_context_length": [2000.0, 2000.0, 2000.0],
    "z_itl": [10.0, 20.0, 40.0],
    "z_thpt_per_gpu": [1000.0, 2500.0, 3000.0],
    "max_kv_tokens": 100_000,
}


def written(folder: Path, **changed: Any) -> str:
    path = folder / "profile.npz"
    arrays = {**ARRAYS, **changed}
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return str(path)


def test_dynamos_curves_are_read_as_they_are(tmp_path: Path) -> None:
    found = read_curves([written(tmp_path)])
    assert found.prefill_tokens_per_s(2500) == 9000
    assert found.ttft(1000) == 100
    assert found.decode_tokens_per_s(20, 2100) == 2500
    assert found.decode_tokens_per_s(5, 2100) == 1000  # none is as fast: the fastest
    assert found.itl(25, 2000) == 20
    (tmp_path / "a").mkdir()
    prefill = {name: None for name in ARRAYS if not name.startswith("prefill")}
    decode = {name: None for name in ARRAYS if name.startswith("prefill")}
    parts = [written(tmp_path, **prefill), written(tmp_path / "a", **decode)]
    assert read_curves(parts).max_kv_tokens == 100_000


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"z_itl": None}, "array z_itl is missing"),
        ({"z_itl": [1.0, 2.0]}, "differ in length"),
        ({"prefill_isl": [], "prefill_ttft": [], "prefill_thpt_per_gpu": []}, "differ in length"),
        ({"z_itl": [10.0, math.nan, 3.0]}, "z_itl has a value that is no finite number"),
        ({"prefill_ttft": ["a", "b"]}, "prefill_ttft has a value that is no finite number"),
        ({"z_thpt_per_gpu": [0.0, 1.0, 2.0]}, "z_thpt_per_gpu has a value that is not above 0"),
        ({"z_thpt_per_gpu": [1e-300, 1.0, 2.0]}, "z_thpt_per_gpu has a value that is not from"),
        ({"z_itl": [1e300, 1.0, 2.0]}, "z_itl has a value that is not from"),
        ({"x_kv_usage": [0.1, 0.5, 1e9]}, "x_kv_usage has a share that is not from 0 to 1"),
        ({"max_kv_tokens": [1, 2]}, "max_kv_tokens must be one number"),
        ({"max_kv_tokens": 0}, "max_kv_tokens must be one number"),
    ],
)
def test_absurd_profiles_are_refused(tmp_path: Path, changed: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_curves([written(tmp_path, **changed)])


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no zip")
    np.save(tmp_path / "one.npy", np.ones(3))
    for name, message in (
        ("none.npz", "cannot read .*No such file"),
        ("text.npz", "it is not an NPZ file"),
        ("one.npy", "is not an NPZ file"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_curves([str(tmp_path / name)])
