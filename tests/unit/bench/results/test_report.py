"""Reports: one definition of a percentile, the JSON scripts rely on, tables that hide nothing."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.results.objectives import Goodput
from dynamo_router.bench.results.output import Output, write_json
from dynamo_router.bench.results.report import Run, runs_content, runs_table
from dynamo_router.bench.results.summary import Summary, summarise, summarise_weighted

RUN = Run(
    mode="kv",
    policy="dynamo:1",
    workers=4,
    seed=0,
    requests=10,
    errors=2,
    rejected=1,
    cached_token_share=0.123456789,
    ttft_ms=Summary(1.0, 2.0, 3.0, 4.0),
    itl_ms=Summary(),
    e2e_ms=Summary(10.0, 20.0, 30.0, 40000.0),
    output_tokens_per_s=1234.5,
    balance_max_over_mean=None,
    wall_s=2.5,
    goodput=Goodput(0.5),
    details={"errors_by_code": {"INTERNAL": 2}},
)


def percentile_by_hand(samples: list[float], q: float) -> float:
    ordered = sorted(samples)
    rank = (len(ordered) - 1) * q / 100
    low = math.floor(rank)
    high = math.ceil(rank)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 5)), max_size=60))
def test_weighted_samples_are_as_if_they_were_spelt_out(samples: list[tuple[float, int]]) -> None:
    spelt = summarise([value for value, count in samples for _ in range(count)])
    weighted = summarise_weighted([v for v, _ in samples], [count for _, count in samples])
    for one, other in zip(vars(weighted).values(), vars(spelt).values(), strict=True):
        assert one == (other if other is None else pytest.approx(other))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_are_the_documented_ones(samples: list[float]) -> None:
    summary = summarise(samples)
    assert summary.mean == pytest.approx(math.fsum(samples) / len(samples))
    for value, q in ((summary.p50, 50), (summary.p90, 90), (summary.p99, 99)):
        assert value == pytest.approx(percentile_by_hand(samples, q))


def test_no_samples_have_no_summary() -> None:
    assert summarise([]) == Summary(None, None, None, None)


def test_a_run_has_the_keys_that_scripts_rely_on(tmp_path: Path) -> None:
    Output(str(tmp_path / "out.json")).write(runs_content([RUN]))
    content = json.loads((tmp_path / "out.json").read_text())
    assert set(content) == {"runs", "environment"}
    run = content["runs"][0]
    assert set(run) == {
        *("mode", "policy", "workers", "seed", "requests", "errors", "rejected"),
        *("cached_token_share", "ttft_ms", "itl_ms", "e2e_ms", "output_tokens_per_s"),
        *("balance_max_over_mean", "wall_s", "goodput", "details"),
    }
    assert run["ttft_ms"] == {"mean": 1.0, "p50": 2.0, "p90": 3.0, "p99": 4.0}
    assert run["itl_ms"] == {"mean": None, "p50": None, "p90": None, "p99": None}
    assert run["goodput"] == {"absolute": 0.5, "relative": None}
    assert run["cached_token_share"] == 0.123457 and run["requests"] == 10
    assert set(content["environment"]) == {"date", "machine", "python", "versions", "commit"}
    assert content["environment"]["versions"]["numpy"]


def test_what_changes_with_time_is_left_out_of_results_that_do_not(tmp_path: Path) -> None:
    texts = []
    for name in ("one.json", "two.json"):
        Output(str(tmp_path / name)).write(runs_content([RUN]), timeless=True)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    environment = json.loads(texts[0])["environment"]
    assert "date" not in environment and "load_average" not in environment["machine"]


def test_json_goes_to_a_file_or_to_stdout_or_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in (str(tmp_path / "out.json"), "-", None):
        Output(target).write({"figure": 1.23456789}, timeless=True)
    written = json.loads((tmp_path / "out.json").read_text())
    assert json.loads(capsys.readouterr().out) == written
    assert written["figure"] == 1.23457


def test_an_unwritable_target_is_a_clear_error(tmp_path: Path) -> None:
    for target in (None, "-", str(tmp_path / "new.json")):
        Output(target)
    with pytest.raises(ConfigError, match="is a directory"):
        Output(str(tmp_path))
    with pytest.raises(ConfigError, match="no such directory"):
        Output(str(tmp_path / "none" / "out.json"))
    with pytest.raises(ConfigError, match="cannot write") as caught:
        write_json(str(tmp_path), {})
    assert caught.value.key == "json"


def test_tables_leave_stdout_to_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    Output("-").print("hello")
    Output(None).print("world")
    Output(None, tables_on_stderr=True).print("again")
    seen = capsys.readouterr()
    assert seen.err == "hello\nagain\n" and seen.out == "world\n"


def test_the_table_shows_errors_beside_latencies() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(
        runs_table([RUN, replace(RUN, mode="random", policy="random")])
    )
    text = out.getvalue()
    assert "kv (dynamo:1)" in text and "random (random)" not in text
    assert "2 (INTERNAL 2)" in text
    assert "20.0 / 30.0 / 40,000.0" in text
    assert "- / - / -" in text
