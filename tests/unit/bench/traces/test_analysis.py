"""dynamo-router analyze: what it reports, as a table, as JSON and as plots."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.traces import SIZE, SPECIAL, chat, request, traces

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.analyze import AnalyzeConfig, run, trace_labels
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.traces.analysis import Spread, analyze, describe
from dynamo_router.bench.traces.columns import columns_of, read_columns
from dynamo_router.bench.traces.similarity import ks_distance, rank_correlation, trace_distances
from dynamo_router.bench.traces.trace import TraceRequest, encode_request


def write(path: Path, requests: list[TraceRequest]) -> str:
    path.write_bytes(b"".join(map(encode_request, requests)))
    return str(path)


def test_lengths_are_split_into_what_is_shared_and_what_is_not() -> None:
    requests = [
        request(0, [1, 2, 3], partial=3),
        request(2000, [1, 2, 4]),
        request(4000, [7], partial=2, output=9),
    ]
    found, samples = analyze(columns_of(requests, trace_block_size=SIZE))
    assert (found.requests, found.span_s) == (3, 4.0)
    assert found.input_length.mean == pytest.approx((21 + 24 + 6) / 3)
    assert found.context_length.max == 16 and found.context_length.min == 0
    assert found.unique_prompt_length.mean == pytest.approx((5 + 8 + 6) / 3)
    assert found.output_length == describe([5, 5, 9])
    assert found.hit_rate_infinite == pytest.approx(16 / 51)
    assert found.hit_rate_curve == [(125_000, pytest.approx(16 / 51))]
    assert samples.curve.curve([7, 8, 16]) == [
        (7, 0.0),
        (8, pytest.approx(8 / 51)),
        (16, pytest.approx(16 / 51)),
    ]
    assert found.blocks.total == 7 and found.blocks.different == 5
    assert found.sessions.count == 2 and found.sessions.follow_up_share == pytest.approx(1 / 3)
    top = found.top_prefixes[0]
    assert (top.tokens, top.requests, top.continuations, top.last_id) == (16, 2, 2, 2)


@pytest.mark.parametrize("name", SPECIAL)
def test_special_traces(name: str) -> None:
    requests = SPECIAL[name]
    found, samples = analyze(columns_of(requests, trace_block_size=SIZE))
    assert found.requests == len(requests)
    assert 0 <= found.hit_rate_infinite <= 1
    assert (found.hit_rate_infinite == 0) == (name in ("one request", "no reuse"))
    assert set(trace_distances(samples, samples).values()) == {0.0}


@settings(max_examples=40, deadline=None)
@given(traces())
def test_shares_and_sums_fit_together(requests: list[TraceRequest]) -> None:
    found, samples = analyze(columns_of(requests, trace_block_size=SIZE))
    assert found.context_length.mean is not None and found.unique_prompt_length.mean is not None
    assert found.input_length.mean == pytest.approx(
        found.context_length.mean + found.unique_prompt_length.mean
    )
    assert (
        0
        <= found.hit_rate_infinite * (found.input_length.mean or 0)
        <= (found.context_length.mean + 1e-9)
    )
    assert samples.session_size.sum() == len(requests)
    assert found.hit_rate_curve[-1][1] == pytest.approx(found.hit_rate_infinite)


def test_spreads() -> None:
    assert describe([]) == Spread()
    spread = describe(range(101))
    assert (spread.min, spread.p25, spread.median, spread.p75, spread.p99, spread.max) == (
        0.0, 25.0, 50.0, 75.0, 99.0, 100.0,
    )  # fmt: skip


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
)
def test_a_ks_distance_is_the_largest_gap_between_shares(one: list[int], two: list[int]) -> None:
    def below(values: list[int], place: int) -> float:
        return sum(value <= place for value in values) / len(values)

    expected = max(abs(below(one, place) - below(two, place)) for place in range(21))
    assert ks_distance(one, two) == pytest.approx(expected)
    assert ks_distance(two, one) == pytest.approx(expected)
    # A weight is as good as so many copies.
    values, counts = np.unique(one, return_counts=True)
    assert ks_distance(values, two, counts) == pytest.approx(expected)


def test_distances_of_nothing_and_correlations() -> None:
    assert ks_distance([], []) == 0 and ks_distance([1], []) == 1
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 1], [3, 2, 1]) == 0


def test_the_command_writes_what_scripts_rely_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "one.jsonl", chat())
    two = write(tmp_path / "two.jsonl", chat(turns=3))
    plot, target = tmp_path / "plot.png", tmp_path / "out.json"
    config = AnalyzeConfig(
        traces=(one, two, one), trace_block_size=SIZE, plot=str(plot), json=str(target)
    )
    assert run(config) == 0
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("  requests  "))
    assert row.split() == ["requests", "160", "120", "160"]
    assert "prefixes of two.jsonl" in shown and "session size" in shown
    assert plot.read_bytes().startswith(b"\x89PNG")
    told = json.loads(target.read_text())
    for name in ("input_length", "output_length", "context_length", "unique_prompt_length"):
        assert set(told[name]) == {"mean", "std", "min", "p25", "median", "p75", "p99", "max"}
    assert told["requests"] == 160 and told["span_s"] > 0
    assert 0 < told["hit_rate_infinite"] < 1
    assert all(len(pair) == 2 for pair in told["hit_rate_curve"])
    other, again = told["others"]
    assert other["requests"] == 120 and other["distances"]["session_size"] == 1.0
    assert again["requests"] == 160 and set(again["distances"].values()) == {0.0}
    assert [size for size, _ in other["hit_rate_curve"]] == [
        size for size, _ in told["hit_rate_curve"]
    ]
    assert told["environment"]["machine"]


def test_the_command_says_the_json_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(AnalyzeConfig(traces=(str(SAMPLE_TRACE),), json="-", cache_tokens=(1000, 10**9))) == 0
    )
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [size for size, _ in told["hit_rate_curve"]] == [1000, 10**9]
    assert told["hit_rate_curve"][1][1] == told["hit_rate_infinite"]
    assert "others" not in told
    assert "input tokens" in err


def test_every_trace_has_a_label_of_its_own() -> None:
    assert trace_labels(["a/one.jsonl", "b/two.jsonl"]) == ["one.jsonl", "two.jsonl"]
    assert trace_labels(["a/x.jsonl", "b/x.jsonl"]) == ["a/x.jsonl", "b/x.jsonl"]
    assert trace_labels(["x", "y", "x", "x"]) == ["x", "y", "x (2)", "x (3)"]


def test_what_cannot_be_done_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write(tmp_path / "trace.jsonl", chat())
    with pytest.raises(ConfigError, match="plot: .* must end in"):
        run(AnalyzeConfig(traces=(trace,), plot=str(tmp_path / "plot.txt")))
    with pytest.raises(ConfigError, match="no such directory"):
        run(AnalyzeConfig(traces=(trace,), plot=str(tmp_path / "none" / "plot.png")))
    with pytest.raises(ConfigError, match="cannot be read"):
        run(AnalyzeConfig(traces=(trace, str(tmp_path / "none.jsonl")), trace_block_size=SIZE))
    with pytest.raises(ConfigError, match=r"trace.jsonl:1: .* hash_ids for"):
        run(AnalyzeConfig(traces=(trace,)))  # of blocks of 8 tokens
    with pytest.raises(ConfigError, match="cache_tokens: must be"):
        AnalyzeConfig(traces=(trace,), cache_tokens=(0,))
    with pytest.raises(ConfigError, match="traces: at least one"):
        AnalyzeConfig(traces=())
    with pytest.raises(ConfigError, match="trace_block_size: 0 must be from 1"):
        AnalyzeConfig(traces=(trace,), trace_block_size=0)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'dynamo-router\[plot\]'"):
        run(AnalyzeConfig(traces=(trace,), plot=str(tmp_path / "plot.png")))


def test_columns_hold_the_trace(tmp_path: Path) -> None:
    requests = chat(sessions=3)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(map(encode_request, requests)))  # every second line is empty
    columns = read_columns(path, trace_block_size=SIZE)
    assert len(columns) == len(requests)
    assert columns.lines.tolist() == [1 + 2 * at for at in range(len(requests))]
    for at, made in enumerate(requests):
        ids = columns.ids[columns.offsets[at] : columns.offsets[at + 1]]
        assert tuple(ids.tolist()) == made.hash_ids
        assert columns.blocks[at] == len(made.hash_ids)
        assert columns.timestamps_ms[at] == made.timestamp_ms
