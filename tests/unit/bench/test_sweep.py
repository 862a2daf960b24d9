"""The sweep: it finds the better setting, says what is chance, and refuses what serve would."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.simulation.config import SimulationConfig
from dynamo_router.bench.simulation.handoffs import RoleConfig
from dynamo_router.bench.sweep import Sweep, SweepConfig, apply_settings, configuration, run
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.process.settings import resolve
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.config import ServeConfig


def config(*knobs: str, **more: Any) -> SweepConfig:
    simulation = SimulationConfig(num_gpu_blocks=600, **more.pop("simulation", {}))
    return SweepConfig(
        trace=str(SAMPLE_TRACE),
        knobs=knobs,
        workers=3,
        requests=80,
        arrival_speedup=4.0,
        simulation=simulation,
        **more,
    )


def test_the_setting_that_uses_the_caches_wins() -> None:
    sweep = Sweep(config("overlap_score_credit=0,1", "router_temperature=0,5", objective="ttft"))
    seen: list[str] = []
    start, best = sweep.search(lambda trial: seen.append(str(dict(trial.settings))))
    assert dict(start.settings) == {} and best is start, "the defaults use them"
    assert [len(trial.runs) for trial in sweep.trials.values()] == [1] * len(seen)
    scores = {json.dumps(dict(trial.settings)): trial.score for trial in sweep.trials.values()}
    assert len(seen) == len(scores) == 3, "what the start has already is not tried again"
    assert scores['{"overlap_score_credit": "0"}'] > 1


def test_a_bad_start_is_left_and_the_file_serves(tmp_path: Path) -> None:
    base = tmp_path / "base.toml"
    base.write_text("[router]\noverlap_score_credit = 0\nrouter_temperature = 10\n")
    output, result = tmp_path / "tuned.toml", tmp_path / "sweep.json"
    knobs = ("overlap_score_credit=1", "router_temperature=0", "admission.queue_threshold=none,9")
    assert (
        run(
            config(
                *knobs,
                objective="ttft",
                holdout_seeds=1,
                output=str(output),
                json=str(result),
                simulation={"router_config": str(base)},
            )
        )
        == 0
    )
    found = json.loads(result.read_text())
    assert found["score"] < 1 and found["best"]["router_temperature"] == "0"
    assert found["trials"][0]["settings"] == found["best"]
    text = output.read_text()
    assert "further seeds" in text and "SAMPLE" not in text
    served = resolve(ServeConfig, {}, environ={}, file=output).config.router
    assert served.router_temperature == 0.0
    assert served.overlap_score_credit == float(found["best"].get("overlap_score_credit", 0))


def test_a_configuration_keeps_what_differs_and_what_was_tuned() -> None:
    base = KvRouterConfig(block_size=32, use_kv_events=False)
    settings = {"admission.queue_threshold": "2", "prefill_load_scale": "1", "mode": "kv"}
    text = configuration(base, settings, ["why"])
    assert text.startswith("# why\n\n[router]\n")
    assert tomllib.loads(text) == {
        "router": {
            "mode": "kv",
            "block_size": 32,
            "prefill_load_scale": 1.0,
            "use_kv_events": False,
            "admission": {"queue_threshold": 2.0},
        }
    }


def test_settings_that_lose_requests_never_win() -> None:
    sweep = Sweep(config("admission.active_prefill_tokens_threshold=none,1", objective="ttft"))
    start, best = sweep.search(lambda trial: None)
    losing = [trial for trial in sweep.trials.values() if trial.lost]
    assert losing and losing[0].score < 1 and best is start


@pytest.mark.parametrize(
    ("knob", "message"),
    [
        ("prefill_load_scale", "'prefill_load_scale' is not NAME=VALUE"),
        ("prefill_load_scale=", "is not NAME=VALUE"),
        ("prefil_load_scale=1", "'prefil_load_scale' is no setting of"),
        ("prefill_load_scale=fast", "prefill_load_scale"),
        ("prefill_load_scale=-1", "prefill_load_scale: -1.0 must be finite and at least 0"),
        ("prefill_load_scale=none", "prefill_load_scale"),
        ("admission.queue_policy=sjf", "queue_policy"),
    ],
)
def test_bad_knobs_are_named(knob: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(knob)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"rounds": 0}, "rounds: 0 must be at least 1"),
        ({"holdout_seeds": -1}, "holdout_seeds: -1 must be at least 0"),
        ({"objective": "luck"}, "objective: 'luck' is not one of"),
        ({"simulation": {"compare": "kv"}}, "compare: a sweep compares settings"),
        (
            {"simulation": {"roles": RoleConfig(prefill_workers=1, decode_workers=1)}},
            "prefill_workers: a sweep has engines that run whole requests",
        ),
    ],
)
def test_bad_settings_are_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**setting)


def test_a_folder_that_is_not_there_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder does not exist"):
        run(config(output=str(tmp_path / "none" / "out.toml")))


def test_sections_and_unset_values_can_be_set() -> None:
    base = apply_settings(KvRouterConfig(), {"admission.queue_threshold": "3"})
    assert base.admission.queue_threshold == 3.0
    assert apply_settings(base, {"admission.queue_threshold": "none"}) == KvRouterConfig()


def test_a_setting_of_a_group_without_a_name_can_be_set() -> None:
    changed = apply_settings(KvRouterConfig(), {"session_affinity_ttl_secs": "60"})
    assert changed.affinity.session_affinity_ttl_secs == 60.0
    text = configuration(KvRouterConfig(), {"session_affinity_ttl_secs": "60"}, [])
    assert tomllib.loads(text) == {"router": {"session_affinity_ttl_secs": 60.0}}
