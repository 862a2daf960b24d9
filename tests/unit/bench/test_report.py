"""The command `report`: a page and figures of a record, and what it refuses."""

import gzip
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.report import ReportConfig, run
from dynamo_router.bench.traffic_report.outlook import busiest, other_counts, policy_of

HEADER = {
    "format": "dynamo-router record", "version": 1, "block_size": 64, "record": "abc",
    "began": "2026-01-01T00:00:00.000+00:00", "engine_block_size": 64, "policy": "forecast",
    "model": "<script>alert(1)</script>",
    "workers": [{"worker": str(n), "blocks": 500, "batched_tokens": 2048} for n in (1, 2)],
}  # fmt: skip


def line(number: int) -> dict[str, Any]:
    chain = [number % 7 + 1, 100 + number % 21, 1000 + number]
    return {
        "timestamp": 40.0 * number, "input_length": 180, "output_length": 9, "hash_ids": chain,
        "status": "ok", "worker": str(number % 2 + 1), "overlap_tokens": 64, "cached_tokens": 64,
        "ttft_ms": 30.0 + number % 5, "itl_ms": 8.0, "e2e_ms": 100.0, "queue_ms": 0.1,
        "engine_ttft_ms": 29.0, "foreseen_ttft_ms": 28.0, "soonest_ttft_ms": 20.0,
        "ttft_objective_ms": 500.0, "itl_objective_ms": 25.0, "session_id": f"s{number % 9}",
    }  # fmt: skip


def written(path: Path, count: int = 60, **more: Any) -> Path:
    lines = [HEADER, *({**line(number), **more} for number in range(count))]
    path.write_bytes(gzip.compress("".join(f"{json.dumps(each)}\n" for each in lines).encode()))
    return path


def reported(folder: Path, *files: Path, **more: Any) -> tuple[str, Any]:
    page, figures = folder / "page.html", folder / "figures.json"
    settings: dict[str, Any] = {"output": str(page), "json": str(figures), "progress": False}
    names = tuple(map(str, files))
    assert run(ReportConfig(files=names, **{**settings, **more})) == 0
    return page.read_text(), json.loads(figures.read_text())


def test_a_page_has_all_parts_and_needs_nothing_else(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl.gz")
    page, figures = reported(tmp_path, path, seeds=2, requests=40, policies="kv,round-robin")
    for head in ("What to change", "This traffic", "How good routing was", "What other settings"):
        assert f"<h2>{head}" in page
    assert page.count("<svg") >= 8 and "prefers-color-scheme:dark" in page
    assert "http" not in page and "src=" not in page and "url(" not in page
    assert "<script" not in page and "alert(1)" in page  # its name, escaped
    body = page.partition("<body>")[2].partition("</body>")[0]
    ET.fromstring(body)
    assert figures["routing"]["requests"] == 60 and figures["fleet"]["workers"] == 2
    outlook = figures["outlook"]
    names = [each["name"] for each in outlook["changes"]]
    assert names == [
        "as recorded", "round-robin", "1 worker", "3 workers", "0.5 x the cache", "2 x the cache",
        "4 x the cache",
    ]  # fmt: skip
    assert outlook["requests"] == 40 and outlook["blocks"] == 500
    for each in outlook["changes"]:
        ratio = each["e2e_ratio"]
        assert ratio["low"] <= ratio["mean"] <= ratio["high"]
    for more_cache in outlook["changes"][-2:]:  # of which no answer needs any
        assert more_cache["e2e_ratio"]["mean"] == more_cache["ttft_ratio"]["mean"] == 1.0
    fitted = outlook["simulated"]["e2e_ms"] / outlook["recorded"]["e2e_ms"]
    assert fitted == pytest.approx(1, abs=0.1)


def test_equal_records_give_equal_pages(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl.gz", 20)
    few = {"seeds": 1, "policies": "round-robin"}
    assert reported(tmp_path, path, **few)[0] == reported(tmp_path, path, **few)[0]


def test_without_simulation_only_the_record_speaks(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl.gz")
    page, figures = reported(tmp_path, path, simulate=False)
    assert figures["outlook"] is None and "<h2>What other" not in page


@pytest.mark.parametrize(
    "more",
    [
        {"status": "unavailable", "worker": "", "cached_tokens": None, "ttft_ms": None},
        {"foreseen_ttft_ms": None, "soonest_ttft_ms": None, "overlap_tokens": None},
        {"timestamp": 5.0},
        {"ttft_ms": 0.0, "itl_ms": 0.0, "e2e_ms": 0.0, "engine_ttft_ms": 0.0},
    ],
    ids=["none served", "no predictions", "all at once", "no time"],
)
def test_poor_records_have_a_page_too(tmp_path: Path, more: dict[str, Any]) -> None:
    path = written(tmp_path / "a.jsonl.gz", 12, **more)
    page, _ = reported(tmp_path, path, seeds=1, policies="round-robin")
    assert not re.search(r"\b(nan|inf|None)\b", page.partition("<body>")[2])


def test_times_of_a_chart_have_one_unit_and_one_request_is_one(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl.gz", 12, ttft_ms=9_000.0, e2e_ms=60_000.0)
    lines = [json.loads(each) for each in gzip.decompress(path.read_bytes()).splitlines()]
    lines[5]["status"] = "unavailable"
    path.write_bytes(gzip.compress("".join(f"{json.dumps(each)}\n" for each in lines).encode()))
    page, _ = reported(tmp_path, path, seeds=1, policies="round-robin")
    assert "<b>1</b><span>request failed</span>" in page
    chart = page.partition("Other policies: whole answers</figcaption>")[2].partition("</svg>")[0]
    assert " s</text>" in chart and " ms</text>" not in chart


def test_a_record_of_a_moment_has_no_span_of_no_seconds(tmp_path: Path) -> None:
    page, _ = reported(tmp_path, written(tmp_path / "a.jsonl.gz", 6), seeds=1, policies="dynamo")
    assert "2026-01-01 00:00:00 UTC" in page and "over 1 seed;" in page
    assert not re.search(r"\b0 s\b|0% time", page)


def test_one_request_alone_is_not_simulated(tmp_path: Path) -> None:
    _, figures = reported(tmp_path, written(tmp_path / "a.jsonl.gz", 1))
    assert figures["outlook"] is None and figures["routing"]["requests"] == 1


def test_several_files_and_patterns_are_one_record(tmp_path: Path) -> None:
    one, two = (written(tmp_path / f"a-{n}.jsonl.gz", 10) for n in (0, 1))
    _, figures = reported(tmp_path, one, two, tmp_path / "a-*.gz", simulate=False)
    assert figures["routing"]["requests"] == 20 and len(figures["files"]) == 2


def test_the_busiest_part_is_that_with_the_shortest_time() -> None:
    times = [0, 100, 200, 205, 210, 400]
    requests: Any = [type("R", (), {"timestamp_ms": at})() for at in times]
    assert [each.timestamp_ms for each in busiest(requests, 3)] == [200, 205, 210]
    assert len(busiest(requests, 9)) == 6


@pytest.mark.parametrize(
    ("workers", "others"), [(1, [2]), (2, [1, 3]), (4, [3, 5, 6]), (8, [6, 10, 12])]
)
def test_fleets_are_a_little_smaller_and_larger(workers: int, others: list[int]) -> None:
    assert other_counts(workers) == others


def test_policies_have_the_names_of_simulations() -> None:
    assert [policy_of(name) for name in ("", "forecast", "round-robin", "dynamo:2")] == [
        "kv", "kv", "round-robin", "dynamo:2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"files": ()}, "files: at least one is needed"),
        ({"requests": 1}, "requests"),
        ({"seeds": 0}, "seeds"),
        ({"workers": 0}, "workers"),
        ({"num_gpu_blocks": -1}, "num_gpu_blocks"),
        ({"policies": ""}, "policies: at least one is needed"),
        ({"policies": "nonsense"}, "'nonsense' is none of kv"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ReportConfig(**{"files": ("a",), **settings})


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl.gz")
    for target, reason in (
        (tmp_path, "it is a folder"),
        (tmp_path / "no/p.html", "no such folder"),
    ):
        with pytest.raises(ConfigError, match=reason):
            run(ReportConfig(files=(str(path),), output=str(target), progress=False))


def test_a_trace_that_is_no_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(line(1)) + "\n")
    with pytest.raises(ConfigError, match=r"trace.jsonl:1: no record: its first line is no header"):
        run(ReportConfig(files=(str(path),), output=str(tmp_path / "p.html"), progress=False))
