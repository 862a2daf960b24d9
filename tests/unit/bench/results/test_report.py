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

from dynamo_router.bench.results.report import (
    Run,
    Summary,
    check_json_target,
    document,
    merge_documents,
    runs_table,
    summarise,
    summarise_weighted,
    table_console,
    write_json,
)
from dynamo_router.runtime.errors import ConfigError

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


def test_a_run_has_the_keys_that_scripts_rely_on() -> None:
    content = json.loads(json.dumps(document([RUN])))
    assert set(content) == {"runs", "environment"}
    run = content["runs"][0]
    assert set(run) == {
        *("mode", "policy", "workers", "seed", "requests", "errors", "rejected"),
        *("cached_token_share", "ttft_ms", "itl_ms", "e2e_ms", "output_tokens_per_s"),
        *("balance_max_over_mean", "wall_s", "details"),
    }
    assert run["ttft_ms"] == {"mean": 1.0, "p50": 2.0, "p90": 3.0, "p99": 4.0}
    assert run["itl_ms"] == {"mean": None, "p50": None, "p90": None, "p99": None}
    assert run["cached_token_share"] == 0.123456789
    assert set(content["environment"]) == {"date", "machine", "python", "versions", "commit"}
    assert content["environment"]["versions"]["numpy"]


def test_merged_runs_remember_where_they_were_made() -> None:
    one, two = document([RUN]), document([replace(RUN, mode="random"), RUN])
    merged = merge_documents([one, two])
    assert [(run["mode"], run["environment"]) for run in merged["runs"]] == [
        ("kv", 0),
        ("random", 1),
        ("kv", 1),
    ]
    assert merged["environments"] == [one["environment"], two["environment"]]


def test_json_goes_to_a_file_or_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = document([RUN])
    write_json(str(tmp_path / "out.json"), content)
    write_json("-", content)
    written = json.loads((tmp_path / "out.json").read_text())
    assert json.loads(capsys.readouterr().out) == written
    assert written["runs"][0]["cached_token_share"] == 0.123457
    assert written["runs"][0]["requests"] == 10
    assert written["environment"] == content["environment"]


def test_an_unwritable_target_is_a_clear_error(tmp_path: Path) -> None:
    check_json_target(None)
    check_json_target("-")
    check_json_target(str(tmp_path / "new.json"))
    with pytest.raises(ConfigError, match="is a directory"):
        check_json_target(str(tmp_path))
    with pytest.raises(ConfigError, match="no such directory"):
        check_json_target(str(tmp_path / "none" / "out.json"))
    with pytest.raises(ConfigError, match="cannot write") as caught:
        write_json(str(tmp_path), {})
    assert caught.value.key == "json"


def test_tables_leave_stdout_to_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    table_console("-").print("hello")
    table_console(None).print("world")
    seen = capsys.readouterr()
    assert seen.err == "hello\n" and seen.out == "world\n"


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
