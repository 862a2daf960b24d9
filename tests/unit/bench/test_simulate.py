"""The simulation as a command: names, JSON, table, pictures, and what it refuses."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.traces import SIZE, request

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.simulate import SimulateConfig, comparison_table, run
from dynamo_router.bench.simulation.capacity import CapacityConfig
from dynamo_router.bench.simulation.config import Load, SimulationConfig
from dynamo_router.bench.simulation.experiment import Experiment, compare_policies
from dynamo_router.bench.simulation.policies import PolicyVariant, parse_policies
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.traces.trace import encode_request
from dynamo_router.bench.traces.trace_lines import TraceError
from dynamo_router.process.settings import resolve
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.policy import LMetric
from dynamo_router.workers.registry import WorkerEntry

ALL = "kv,round-robin,dynamo:1,dynamo:16,random,least-loaded,power-of-two,prefix-hash:2,chwbl:1.25"
ALL += ",dynamo:16+queue,lmetric,llm-d,preble"
SUMMARY = {"mean", "p50", "p90", "p99"}


def simulate(tmp_path: Path, *, trace: str = str(SAMPLE_TRACE), **more: Any) -> dict[str, Any]:
    """Run the command; the JSON it writes."""
    target = tmp_path / "out.json"
    simulation = SimulationConfig(
        **{
            "compare": more.pop("compare", None),
            "num_gpu_blocks": more.pop("num_gpu_blocks", 500),
            **{
                key: more.pop(key)
                for key in list(more)
                if key not in SimulateConfig.__annotations__
            },
        }
    )
    config = SimulateConfig(
        trace=trace,
        **{"requests": 60, "workers": 3, "json": str(target), **more},
        simulation=simulation,
    )
    assert run(config) == 0
    written: dict[str, Any] = json.loads(target.read_text())
    return written


def test_each_policy_has_its_names_and_all_the_fields_scripts_rely_on(tmp_path: Path) -> None:
    result = simulate(tmp_path, compare=ALL, seeds=2, seed=7)
    runs = result["runs"]
    assert [(each["mode"], each["policy"], each["seed"]) for each in runs] == [
        (mode, policy, seed)
        for mode, policy in [
            ("kv", "forecast"),
            ("round-robin", "round-robin"),
            ("kv", "dynamo:1"),
            ("kv", "dynamo:16"),
            ("random", "random"),
            ("least-loaded", "least-loaded"),
            ("power-of-two", "power-of-two"),
            ("prefix-hash", "prefix-hash:2"),
            ("chwbl", "chwbl:1.25"),
            ("kv", "dynamo:16+queue"),
            ("lmetric", "lmetric"),
            ("llm-d", "llm-d"),
            ("preble", "preble"),
        ]
        for seed in (7, 8)
    ]
    for each in runs:
        assert each["workers"] == 3 and each["requests"] == 60
        assert each["errors"] == each["rejected"] == 0
        for key in ("ttft_ms", "itl_ms", "e2e_ms"):
            assert each[key].keys() == SUMMARY and all(v > 0 for v in each[key].values())
        assert 0 <= each["cached_token_share"] <= each["hit_rate_infinite"] < 1
        assert each["hit_rate_vs_pooled_lru"] == pytest.approx(
            each["cached_token_share"] / each["hit_rate_pooled_lru"], rel=1e-4
        )
        assert 0 < each["goodput_share"] <= 1
        assert each["goodput"]["absolute"] == each["goodput_share"]
        good = each["goodput"]["relative"] * 60
        assert 0 <= good < 60
        assert (each["engine_s_per_1000_good"] is None) == (good == 0)
        if good:
            seconds = 3 * each["wall_s"] / good * 1000
            assert each["engine_s_per_1000_good"] == pytest.approx(seconds, rel=1e-4)
        assert each["capacity"] is None, "nobody asked for it"
        assert each["balance_max_over_mean"] >= 1
        assert {"output_tokens_per_s", "wall_s", "waiting_mean", "waiting_max"} <= each.keys()
    assert {"machine", "versions", "commit"} <= result["environment"].keys()
    assert runs[0]["cached_token_share"] > runs[2]["cached_token_share"], "kv beats round-robin"


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    texts = []
    for seed in (1, 1, 2):
        simulate(tmp_path, compare="kv,random", seed=seed, event_loss=0.1, event_delay_ms=20.0)
        texts.append((tmp_path / "out.json").read_bytes())
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_progress_is_a_line_for_each_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(tmp_path, compare="random", seeds=2)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["random, seed 0", "random, seed 1"]
    simulate(tmp_path, compare="random", progress=False)
    assert capsys.readouterr().err == ""


def test_a_mode_alone_is_a_comparison_of_one(tmp_path: Path) -> None:
    assert [r["policy"] for r in simulate(tmp_path, mode="random")["runs"]] == ["random"]
    assert [r["mode"] for r in simulate(tmp_path)["runs"]] == ["kv", "round-robin"]


def test_a_prompt_on_an_idle_engine_takes_as_long_as_it_does_alone(tmp_path: Path) -> None:
    trace = tmp_path / "one.jsonl"
    ids = list(range(40))
    row = {"timestamp": 0, "input_length": 20_000, "output_length": 2, "hash_ids": ids}
    trace.write_text(json.dumps(row) + "\n")
    how = {"trace": str(trace), "compare": "round-robin", "workers": 1, "num_gpu_blocks": 2000}
    (run,) = simulate(tmp_path, **how)["runs"]
    assert run["ttft_ms"]["mean"] == pytest.approx(run["alone_ms"], rel=1e-3)
    (slow,) = simulate(tmp_path, **how, worker_speeds="0.5")["runs"]
    assert slow["ttft_ms"]["mean"] == pytest.approx(slow["alone_ms"], rel=1e-3)
    assert slow["alone_ms"] == pytest.approx(2 * run["alone_ms"], rel=1e-3)
    (dense,) = simulate(tmp_path, **how, attention_us_per_ktoken2=500.0)["runs"]
    assert dense["ttft_ms"]["mean"] == pytest.approx(dense["alone_ms"], rel=1e-3)
    assert dense["alone_ms"] - run["alone_ms"] == pytest.approx(0.5 * 20**2 / 2, rel=1e-3)


def test_the_table_has_a_row_for_each_policy_and_the_spread_over_seeds() -> None:
    load = Load(trace=str(SAMPLE_TRACE), requests=60)
    config = SimulationConfig(seeds=3, num_gpu_blocks=500)
    runs = compare_policies(config, load, workers=3, names="round-robin,random")
    console = Console(file=io.StringIO(), width=220)
    console.print(comparison_table(runs, title="title"))
    assert isinstance(console.file, io.StringIO)
    rows = [line for line in console.file.getvalue().splitlines() if "r" in line]
    robin = next(row for row in rows if "round-robin" in row)
    chance = next(row for row in rows if "random" in row)
    assert "±" not in robin, "it does not depend on the seed"
    assert "±" in chance


def test_pictures_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "plots"
    simulate(tmp_path, compare="kv,round-robin", plot=str(folder))
    for name in ("ttft.png", "hit_rate.png", "worker_load.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="plot"):
        simulate(tmp_path, plot=str(tmp_path / "file" / "plots"))


def test_a_run_that_served_nobody_fails(tmp_path: Path) -> None:
    config = SimulateConfig(
        trace=str(SAMPLE_TRACE), requests=5, simulation=SimulationConfig(num_gpu_blocks=2)
    )
    assert run(config) == 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        "kv,",
        "nonsense",
        "dynamo:",
        "dynamo:x",
        "dynamo:-1",
        "dynamo:inf",
        "dynamo:1:2",
        "round-robin:1",
        "prefix-hash",
        "prefix-hash:0",
        "prefix-hash:1.5",
        "chwbl:0.5",
        "chwbl:nan",
        "chwbl:1.25:0",
        "direct",
        "dynamo:+queue",
        "dynamo:4+wait",
        "lmetric:2",
        "llm-d:1",
        "llm-d:1:2:-1",
        "preble:inf",
        "preble:x",
    ],
)
def test_a_name_of_no_policy_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="compare"):
        parse_policies(name, block_size=64, trace_block_size=512)


@pytest.mark.parametrize(
    "key, value",
    [
        ("seeds", 0),
        ("event_loss", 1.5),
        ("event_loss", float("nan")),
        ("event_delay_ms", -1.0),
        ("event_delay_ms", float("inf")),
        ("slo_ttft_ms", 0.0),
        ("slo_itl_ms", float("nan")),
        ("slo_relative_factor", -1.0),
        ("capacity_share", 0.0),
        ("capacity_precision", 1.0),
        ("attention_us_per_ktoken2", float("nan")),
        ("block_size", 0),
        ("num_gpu_blocks", -5),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("engine", "other"),
        ("preemption_mode", "random"),
        ("dp_size", 0),
        ("startup_time_s", -1.0),
        ("planner_profile_data", "/no/such/file"),
        ("worker_speeds", "1,fast"),
        ("worker_speeds", "1,0"),
        ("worker_speeds", ""),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        resolve(SimulationConfig, {key: value}, environ={})


def test_a_mode_and_a_comparison_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="--mode"):
        SimulateConfig(trace="t", mode="kv", simulation=SimulationConfig(compare="kv,random"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workers", 0),
        ("requests", 0),
        ("max_output", 0),
        ("arrival_speedup", 0.0),
        ("arrival_speedup", float("nan")),
        ("trace_block_size", 0),
        ("trace_block_size", 2**20 + 1),
    ],
)
def test_a_bad_load_is_refused_by_its_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        SimulateConfig(**{"trace": "t", key: value})
    assert caught.value.key == key


def test_a_bad_trace_or_name_is_refused_before_anything_runs(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    with pytest.raises(TraceError, match="bad.jsonl:1"):
        simulate(tmp_path, trace=str(bad))
    with pytest.raises(ConfigError, match="compare"):
        simulate(tmp_path, compare="kv,nonsense")
    assert not (tmp_path / "out.json").exists()


def test_capacity_is_a_rate_at_which_enough_answers_are_good(tmp_path: Path) -> None:
    searched = CapacityConfig(capacity=True, capacity_share=0.9, capacity_precision=0.1)
    trace = tmp_path / "even.jsonl"
    row = {"input_length": 2048, "output_length": 20}
    trace.write_text(
        "".join(
            json.dumps({**row, "timestamp": 1000 * n, "hash_ids": [4 * n + i for i in range(4)]})
            + "\n"
            for n in range(40)
        )
    )
    how: dict[str, Any] = {"trace": str(trace), "compare": "round-robin", "requests": 40}
    (run,) = simulate(tmp_path, **how, search=searched)["runs"]
    speedup = run["details"]["capacity_speedup"]
    assert run["capacity"] > 0 and run["details"]["arrival_speedup"] == 1.0
    (there,) = simulate(tmp_path, **how, arrival_speedup=speedup)["runs"]
    (beyond,) = simulate(tmp_path, **how, arrival_speedup=1.1 * speedup)["runs"]
    assert there["goodput"]["relative"] >= 0.9 > beyond["goodput"]["relative"]


def test_capacity_of_a_trace_with_one_timestamp_is_that_of_even_arrivals(tmp_path: Path) -> None:
    """Speeding it up changes nothing: the search answered 0, or a rate that meant nothing."""
    at_once, even = tmp_path / "at_once.jsonl", tmp_path / "even.jsonl"
    prompts = [list(range(1000 * n, 1000 * n + 400)) for n in range(40)]
    for path, gap_ms in ((at_once, 0), (even, 1000)):
        made = [request(gap_ms * n, prompt, output=20) for n, prompt in enumerate(prompts)]
        path.write_bytes(b"".join(map(encode_request, made)))
    searched = CapacityConfig(capacity=True, capacity_precision=0.1)
    how: dict[str, Any] = {"compare": "round-robin", "requests": 40, "trace_block_size": SIZE}
    runs = [
        simulate(tmp_path, trace=str(path), **how, search=searched)["runs"][0]
        for path in (at_once, even)
    ]
    assert runs[0]["goodput"]["relative"] < 0.95, "all at once they are too many"
    speedups = [run["details"]["capacity_speedup"] for run in runs]
    assert speedups[0] == speedups[1] > 1
    assert runs[0]["capacity"] == pytest.approx(runs[1]["capacity"], rel=0.03)


def test_without_events_the_router_predicts_what_is_cached(tmp_path: Path) -> None:
    told, predicted = (
        simulate(tmp_path, mode="dynamo:4", kv_events=events, event_loss=1.0)["runs"][0]
        for events in (True, False)
    )
    assert predicted["cached_token_share"] > told["cached_token_share"]
    assert predicted["details"]["lost_event_messages"] == 0


def test_a_router_need_not_be_told_what_its_engines_have() -> None:
    seen: list[tuple[int | None, int | None]] = []

    class Curious(LMetric):
        def on_worker(self, number: int, entry: WorkerEntry) -> None:
            seen.append((entry.total_kv_blocks, entry.max_num_batched_tokens))

    load = Load(trace=str(SAMPLE_TRACE), requests=3)
    for told in (True, False):
        config = SimulationConfig(engine_facts=told, num_gpu_blocks=500)
        variant = PolicyVariant("curious", "curious", KvRouterConfig(), Curious)
        Experiment(config, load, 1).run(variant, 0)
    assert set(seen) == {(500, 8192), (None, None)}
