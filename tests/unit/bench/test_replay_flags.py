"""Replay with and without a target: no flag of the one is passed over by the other."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamo_router import cli
from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.replay import JUDGED_BY, LIVE_ONLY, ReplayConfig
from dynamo_router.bench.simulate import SimulateConfig
from dynamo_router.bench.simulation.config import SimulationConfig
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.process.settings import options_of, resolve

TRACE = str(SAMPLE_TRACE)
LIVE: list[tuple[str, str, Any]] = [
    ("concurrency", "--concurrency", 3),
    ("streaming", "--streaming", True),
    ("streaming", "--no-streaming", False),
    ("vocab_size", "--vocab-size", 50),
    ("timeout_s", "--timeout", 5.0),
    ("timeout_s", "--timeout", 600.0),
    ("connect_timeout_s", "--connect-timeout", 10.0),
    ("max_in_flight", "--max-in-flight", 4096),
    ("policy", "--policy", "dynamo:16"),
    ("tls_ca", "--tls-ca", "ca.pem"),
    ("tls_cert", "--tls-cert", "us.pem"),
    ("tls_key", "--tls-key", "us.key"),
    ("token_file", "--token-file", "token"),
]
ROLES = ("prefill_workers", "decode_workers")
"""Each needs the other, and what says how such fleets decide needs both: refused as such first."""
VALUES: dict[type, Any] = {int: 7, float: 0.5, str: "1"}
OTHER_VALUES = {"replica_cut_s": "60-90"}
SWITCHES = {True: "--no-", False: "--"}  # the flag that changes a default
SIMULATED: list[tuple[str, str, Any]] = [
    (
        (spec.key, SWITCHES[spec.default] + spec.flags[0].removeprefix("--"), not spec.default)
        if spec.kind is bool
        else (
            spec.key,
            spec.flags[0],
            spec.choices[-1] if spec.choices else OTHER_VALUES.get(spec.key, VALUES[spec.kind]),
        )
    )
    for spec in options_of(SimulationConfig)
    # Files are read, and refused as such, before anybody asks whether they are of use.
    if spec.key not in ("router_config", *ROLES, *JUDGED_BY) and not spec.key.startswith("disagg")
]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The command line; the exit code and what stands on stderr."""

    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["dynamo-router", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().err

    return run


def test_all_that_is_live_alone_is_tested() -> None:
    assert {key for key, _, _ in LIVE} == set(LIVE_ONLY)


@pytest.mark.parametrize(("key", "flag", "value"), LIVE)
def test_flags_of_live_replays_are_refused_without_a_target(
    call: Callable[..., tuple[int, str]], key: str, flag: str, value: Any
) -> None:
    """Also where the value is the default."""
    words = [flag] if isinstance(value, bool) else [flag, value]
    code, err = call("replay", TRACE, "--workers", 2, *words)
    assert code == 2
    assert f"{key}: --{flag.removeprefix('--').removeprefix('no-')} needs a --target" in err
    if value != {spec.key: spec.default for spec in options_of(ReplayConfig)}[key]:
        with pytest.raises(ConfigError, match="needs a --target") as caught:
            ReplayConfig(**{"trace": TRACE, key: value})
        assert caught.value.key == key


@pytest.mark.parametrize(("key", "flag", "value"), SIMULATED)
def test_flags_of_simulations_are_refused_with_a_target(
    call: Callable[..., tuple[int, str]], key: str, flag: str, value: Any
) -> None:
    words = [flag] if isinstance(value, bool) else [flag, value]
    code, err = call("replay", TRACE, "--target", "127.0.0.1:1", *words)
    flag = flag.replace("--no-", "--")
    assert code == 2 and f"{key}: {flag} is for simulations" in err
    simulation = resolve(SimulationConfig, {key: value}, environ={}).config
    if simulation != SimulationConfig():
        with pytest.raises(ConfigError, match=f"{flag} is for simulations") as caught:
            ReplayConfig(trace=TRACE, target="127.0.0.1:1", simulation=simulation)
        assert caught.value.key == key


def test_roles_of_engines_are_for_simulations(call: Callable[..., tuple[int, str]]) -> None:
    roles = ("--prefill-workers", 2, "--decode-workers", 2)
    for words in (roles, (*roles, "--disagg", "always"), (*roles, "--disagg-policy", "noncached")):
        code, err = call("replay", TRACE, "--target", "127.0.0.1:1", *words)
        assert code == 2 and "is for simulations: --target is a live one" in err, err


def test_without_a_target_it_is_the_simulation_to_the_byte(
    call: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    texts = []
    for command in ("replay", "simulate"):
        out = tmp_path / f"{command}.json"
        code, err = call(
            *(command, TRACE, "--workers", 2, "--compare", "kv,dynamo:4,random", "--seeds", 2),
            *("--requests", 20, "--max-output", 3, "--seed", 4, "--event-loss", 0.2),
            *("--num-gpu-blocks", 500, "--arrival-speedup", 3, "--no-progress", "--json", out),
        )
        assert code == 0 and err == ""
        texts.append(out.read_bytes())
    assert texts[0] == texts[1]
    runs = json.loads(texts[0])["runs"]
    assert [(run["policy"], run["seed"], run["workers"]) for run in runs] == [
        (policy, seed, 2) for policy in ("forecast", "dynamo:4", "random") for seed in (4, 5)
    ]


def test_simulate_takes_all_that_replay_takes_without_a_target() -> None:
    """The same flags with the same defaults, so that either name can stand in a script."""
    replay, simulate = (
        {spec.flags: (spec.key, spec.default) for spec in options_of(cls)}
        for cls in (ReplayConfig, SimulateConfig)
    )
    assert {replay[flags][0] for flags in replay.keys() - simulate.keys()} == {"target", *LIVE_ONLY}
    assert simulate.items() <= replay.items()
