"""The command line: settings arrive with their origin, and every mistake is one clear line."""

import json
from pathlib import Path

import pytest

from dynamo_router import cli
from dynamo_router.base.errors import ConfigError
from dynamo_router.bench import simulate
from dynamo_router.bench.workbench import decision
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.mock_process import MockEnginesConfig


def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    monkeypatch.setattr("sys.argv", ["dynamo-router", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    code = end.value.code
    assert isinstance(code, int)
    return code, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    return lambda *words: call(capsys, monkeypatch, *words)


def test_config_prints_every_value_with_its_origin(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "router.toml"
    file.write_text("http_port = 9999\n[router]\nrouter_temperature = 0.5\n")
    monkeypatch.setenv("DYN_ROUTER_TTL_SECS", "7")
    code, out, _ = run(
        "config", "--json", "--config", str(file), "--port", "1", "--no-kv-events",
        "--worker", "grpc://a:1", "--worker", "grpc://b:2",
    )  # fmt: skip
    told = json.loads(out)
    assert code == 0
    assert told["port"] == {"value": 1, "origin": "flag --port"}
    assert told["http_port"] == {"value": 9999, "origin": f"file {file}"}
    assert told["router.router_ttl_secs"]["value"] == 7.0
    assert told["router.router_ttl_secs"]["origin"] == "environment DYN_ROUTER_TTL_SECS"
    assert told["router.use_kv_events"] == {"value": False, "origin": "flag --kv-events"}
    assert told["workers"]["value"] == ["grpc://a:1", "grpc://b:2"]
    assert told["mockers"] == {"value": 0, "origin": "default"}
    code, out, _ = run("config")
    assert code == 0 and "router.overlap_score_credit" in out and "default" in out


def test_both_vocabularies_of_the_cost_function_are_understood(run) -> None:
    _, out, _ = run("config", "--json", "--kv-overlap-score-weight", "2.5")
    assert json.loads(out)["router.overlap_score_weight"]["value"] == 2.5
    params = KvRouterConfig(overlap_score_weight=2.5, overlap_score_credit=0.3).cost_params
    assert (params.prefill_load_scale, params.overlap_score_credit) == (2.5, 1.0)
    params = KvRouterConfig(overlap_score_weight=0.0).cost_params
    assert (params.prefill_load_scale, params.overlap_score_credit) == (0.0, 0.0)
    params = KvRouterConfig(prefill_load_scale=3.0, overlap_score_credit=0.3).cost_params
    assert (params.prefill_load_scale, params.overlap_score_credit) == (3.0, 0.3)


def test_a_policy_has_the_name_that_reports_use() -> None:
    assert KvRouterConfig().policy_name == "forecast"
    assert KvRouterConfig(policy="dynamo").policy_name == "dynamo:1"
    assert KvRouterConfig(policy="dynamo:32").policy_name == "dynamo:32"
    assert KvRouterConfig(overlap_score_weight=16.0).policy_name == "dynamo:16"
    assert KvRouterConfig(mode="random").policy_name == "random"


@pytest.mark.parametrize("engine", ["trtllm", "vllm"])
def test_workers_explain_themselves_and_refuse_what_they_cannot_run(
    run, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run("worker", engine, "--help-all")
    assert code == 0 and f"DYNAMO_ROUTER_{engine.upper()}_BLOCK_SIZE" in out
    assert "--discovery" in out and "--drain-timeout-s" in out
    for words, text in (
        ((), "model: name a model"),
        (("--model", "/there/is/none"), "model: there is no folder /there/is/none"),
        (("--model", "m", "--block-size", "0"), "block_size: must be at least 1"),
        (("--model", "m", "--engine-args", "[1]"), "engine_args: not a JSON object"),
        (("--model", "m", "--kv-cache-memory", "2"), "kv_cache_memory: must be in (0, 1]"),
    ):
        code, _, err = run("worker", engine, *words)
        assert code == 2 and text in err
    monkeypatch.setenv(f"DYNAMO_ROUTER_{engine.upper()}_PORT", "70000")
    assert "port" in run("worker", engine, "--model", "m")[2]


def test_a_worker_of_vllm_is_one_rank(run) -> None:
    args = '{"data_parallel_size": 2}'
    code, _, err = run("worker", "vllm", "--model", "m", "--engine-args", args)
    assert code == 2 and "start a worker for each rank" in err


@pytest.mark.parametrize("command", ["serve", "mocker", "simulate", "replay", "demo", "config"])
def test_every_command_explains_itself(run, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0 and "--config" in out
    if "--help-all" in out:
        code, out, _ = run(command, "--help-all")
    assert code == 0 and "env: DYNAMO_ROUTER_" in out


def test_a_misspelt_environment_name_is_said_with_the_nearest_one(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMO_ROUTER_MAX_ATEMPTS", "9")
    monkeypatch.setenv("DYNAMO_ROUTER_PORT", "tcp://10.0.0.1:8000")  # a Service's, not a setting
    code, out, err = run("config", "--json")
    assert code == 0 and json.loads(out)["port"]["value"] == 8000
    assert err == (
        "dynamo-router: warning: DYNAMO_ROUTER_MAX_ATEMPTS is no setting; did you mean "
        "DYNAMO_ROUTER_MAX_ATTEMPTS?\n"
        "dynamo-router: warning: DYNAMO_ROUTER_PORT is ignored: it is the address of a "
        "Kubernetes Service\n"
    )


@pytest.mark.parametrize("bench", ["index", "decision", "hostile", "path"])
def test_every_bench_explains_itself(run, bench: str) -> None:
    code, out, _ = run("bench", bench, "--help")
    assert code == 0 and "--json" in out


@pytest.mark.parametrize("words", [["simulate", "x"], ["bench", "decision"]])
def test_every_command_ends_alike_on_ctrl_c(
    run, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def interrupted(config: object) -> int:
        raise KeyboardInterrupt

    for module in (simulate, decision):
        monkeypatch.setattr(module, "run", interrupted)
    assert run(*words) == (130, "", "interrupted\n")
    monkeypatch.setattr(cli, "_load", interrupted)  # while it is imported
    assert run(*words) == (130, "", "interrupted\n")


def test_the_list_of_commands_and_the_version(run) -> None:
    code, out, _ = run("--help")
    assert code == 0 and all(name in out for name in ("serve", "mocker", "replay", "demo"))
    assert run("--version")[1].startswith("dynamo-router")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--prot", "1"], "No such option '--prot'"),
        (["serve", "--mode", "best"], "best"),
        (["serve", "--port", "x"], "'x' is not a valid integer"),
        (["serve", "--port", "70000"], "port: must be in 0..65535"),
        (["serve", "--block-size", "0"], "block_size: 0 must be finite and at least 1"),
        (["serve", "--router-temperature", "nan"], "router_temperature: nan must be finite"),
        (["serve", "--config", "/nowhere/x.toml"], "config: cannot read /nowhere/x.toml: No such"),
        (["nonsense"], "No such command 'nonsense'.\n"),
        (["serv"], "No such command 'serv'; did you mean serve?"),
        (["bench", "pth"], "No such command 'pth'; did you mean path?"),
    ],
)
def test_mistakes_are_named(run, words: list[str], message: str) -> None:
    code, _, err = run(*words)
    assert code == 2 and message in err


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"mode": "best"}, "mode: 'best' is not one of kv, "),
        ({"router_prune_target_ratio": 0.0}, "router_prune_target_ratio: must be in"),
        ({"active_request_expiry_secs": 0.0}, "active_request_expiry_secs: must be greater"),
        (
            {"router_track_output_blocks": True, "router_track_active_blocks": False},
            "router_track_output_blocks: needs router_track_active_blocks",
        ),
        ({"overlap_score_weight": -1.0}, "overlap_score_weight: -1.0 must be finite"),
    ],
)
def test_impossible_router_settings_are_refused(bad: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KvRouterConfig(**bad)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"request_timeout_s": 0.0}, "request_timeout_s: 0.0 must be finite and at least 0.01"),
        ({"max_attempts": 0}, "max_attempts: 0 must be"),
        ({"index_snapshot_interval_s": 0.0}, "index_snapshot_interval_s: 0.0 must be finite"),
        (
            {"index_snapshot": "f", "router": KvRouterConfig(use_kv_events=False)},
            "index_snapshot: needs use_kv_events",
        ),
    ],
)
def test_impossible_service_settings_are_refused(bad: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServeConfig(**bad)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"mockers": -1}, "mockers: -1 must be"),
        ({"mocker_port": 65536}, "mocker_port: must be in"),
        ({"max_num_seqs": 0}, "max_num_seqs: 0 must be"),
        ({"speedup_ratio": 0.0}, "speedup_ratio: must be greater than 0"),
    ],
)
def test_impossible_mock_engines_are_refused(bad: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MockEnginesConfig(**bad)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("command", "text", "error"),
    [
        ("serve", "lame_duck_s = 3\n[router]\nblock_size = 32\n", None),
        ("frontend", 'discovery = "file"\n', None),
        ("frontend", "", "discovery: models are found in a store"),
        ("serve", "lame_duk_s = 3\n", "lame_duk_s: unknown key in {file}; did you mean lame_duck"),
        ("serve", "[router]\nblock_size = -1\n", "block_size: -1 must be"),
        ("serve", "port = \n", "config: {file} is not TOML"),
        ("frontend", "port = 1\n", "port: unknown key in {file}"),
    ],
)
def test_a_file_is_checked_as_its_command_reads_it(
    run, tmp_path: Path, command: str, text: str, error: str | None
) -> None:
    file = tmp_path / "router.toml"
    file.write_text(text)
    code, out, complaint = run("config", "--check", str(file), "--command", command)
    if error is None:
        count = text.count(" = ")
        assert (code, out) == (0, f"{file}: {count} settings of {command}, each valid\n")
    else:
        assert code == 2 and error.format(file=file) in complaint


def test_a_file_to_check_must_be_there(run) -> None:
    code, _, complaint = run("config", "--check", "/nowhere/router.toml")
    assert code == 2 and "cannot read /nowhere/router.toml" in complaint
