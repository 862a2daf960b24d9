"""Records that are cut, damaged or made up: a reader says so in one line, or reads them."""

import gzip
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo_router import cli
from dynamo_router.bench.report import ReportConfig, run
from dynamo_router.bench.traces import trace
from dynamo_router.bench.traces.trace import read_record, read_trace
from dynamo_router.bench.traces.trace_lines import Line, TraceError, header_of, read_lines
from dynamo_router.server.record_format import Header

HEADER: dict[str, Any] = {
    "format": "dynamo-router record", "version": 1, "block_size": 64, "record": "ab",
    "began": "2026-01-01T00:00:00.000+00:00", "engine_block_size": 16, "policy": "forecast",
    "workers": [{"worker": "7", "blocks": 99, "batched_tokens": 2048}],
}  # fmt: skip
LINES: list[dict[str, Any]] = [
    {
        "timestamp": 100.0 * number, "input_length": 192, "output_length": 5,
        "hash_ids": [1, 2, 10 + number], "status": "ok", "session_id": "aa", "tenant": "bb",
        "worker": "7", "overlap_tokens": 0, "cached_tokens": 10, "ttft_ms": 5.0, "itl_ms": 1.0,
        "e2e_ms": 9.0, "queue_ms": 0.1, "engine_ttft_ms": 4.0, "foreseen_ttft_ms": 3.0,
        "soonest_ttft_ms": 2.0, "ttft_objective_ms": 500, "itl_objective_ms": 25, "attempts": 2,
    }
    for number in range(4)
]  # fmt: skip
VALUES = (
    None, "", "x", "\x00", "2026-13-45", "9999-12-31T23:59:59+00:00", [], {}, True, -1, 0, 1.5,
    10**10, 2**63, 10**30, 1e18, 1e300, -1e300, float("nan"), float("inf"),
)  # fmt: skip


def content(*lines: object) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def read(path: Path, data: bytes) -> int:
    """How many requests; 0: refused, in one line that names the file."""
    path.write_bytes(data)
    try:
        return len(read_record([str(path)]).requests)
    except TraceError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
        return 0


@pytest.mark.parametrize("key", HEADER)
def test_any_value_in_a_header_is_read_or_refused(tmp_path: Path, key: str) -> None:
    path, page = tmp_path / "a.jsonl", tmp_path / "page.html"
    for value in VALUES:
        if read(path, content({**HEADER, key: value}, *LINES)):
            assert run(ReportConfig(files=(str(path),), output=str(page), simulate=False)) == 0
            assert not re.search(r"\b(nan|inf)\b", page.read_text().partition("<body>")[2])


@pytest.mark.parametrize("key", LINES[0])
def test_any_value_in_a_line_is_read_or_refused(tmp_path: Path, key: str) -> None:
    path, page = tmp_path / "a.jsonl", tmp_path / "page.html"
    for value in VALUES:
        lines = [*LINES[:2], {**LINES[2], key: value}, *LINES[3:]]
        if read(path, content(HEADER, *lines)):
            assert run(ReportConfig(files=(str(path),), output=str(page), simulate=False)) == 0
            assert not re.search(r"\b(nan|inf)\b", page.read_text().partition("<body>")[2])
            assert len(list(read_trace(path))) == 4


@pytest.mark.parametrize("key", [key for key in LINES[0] if key.endswith("_ms")])
@pytest.mark.parametrize("value", [1e308, -1e308, 1.0001e16, 9e15, -9e15, 5e-324])
def test_times_beyond_sense_are_refused_and_large_ones_drawn(
    tmp_path: Path, key: str, value: float
) -> None:
    path, page = tmp_path / "a.jsonl", tmp_path / "page.html"
    found = read(path, content(HEADER, *({**line, key: value} for line in LINES)))
    assert bool(found) == (abs(value) <= 1e16)
    if found:
        assert run(ReportConfig(files=(str(path),), output=str(page), simulate=False)) == 0


def test_a_record_that_is_cut_anywhere_has_its_whole_lines_or_is_refused(tmp_path: Path) -> None:
    data = content(HEADER, *LINES)
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        whole = sum(end - 1 <= cut for end in ends)  # the last line break is not missed
        at_an_end = cut in ends or cut + 1 in ends
        assert read(tmp_path / "a.jsonl", data[:cut]) == (max(0, whole - 1) if at_an_end else 0)
    packed = gzip.compress(data)
    assert {read(tmp_path / "a.jsonl.gz", packed[:cut]) for cut in range(len(packed))} == {0}


def test_bytes_that_are_others_are_read_or_refused(tmp_path: Path) -> None:
    rng = random.Random(1)
    plain = content(HEADER, *LINES)
    for data in (plain, gzip.compress(plain)):
        for _ in range(300):
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 3)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            read(tmp_path / "a.jsonl", bytes(damaged))


@pytest.mark.parametrize("command", ["report", "analyze", "simulate", "sweep", "synthesize"])
def test_a_command_ends_with_2_and_one_line(
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content({**HEADER, "block_size": 0}, *LINES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["dynamo-router", command, str(path)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err.strip()
    assert end.value.code == 2
    assert said.count("\n") == 0 and str(path) in said and "block_size" in said


def test_files_that_are_rotated_while_they_are_read_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = tmp_path / "a.jsonl", tmp_path / "a.jsonl.1"
    new.write_bytes(content(HEADER, *LINES[2:]))
    old.write_bytes(content(HEADER, *LINES[:2]))

    def rotate(line: Line) -> Header | None:
        if new.exists():
            old.rename(tmp_path / "a.jsonl.2")
            new.rename(old)
        return header_of(line)

    monkeypatch.setattr(trace, "header_of", rotate)
    found = read_record([str(new), str(old)]).requests
    assert [each.timestamp_ms for each in found] == [line["timestamp"] for line in LINES]


def test_files_that_are_rotated_while_they_are_opened_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = tmp_path / "a.jsonl", tmp_path / "a.jsonl.1"
    new.write_bytes(content(HEADER, *LINES[2:]))
    old.write_bytes(content(HEADER, *LINES[:2]))

    def rotate_before(path: str) -> Iterator[Line]:
        if path == str(old) and not (tmp_path / "a.jsonl.2").exists():
            old.rename(tmp_path / "a.jsonl.2")
            new.rename(old)
            new.write_bytes(content(HEADER, {**LINES[3], "timestamp": 400.0}))
        yield from read_lines(path)

    monkeypatch.setattr(trace, "read_lines", rotate_before)
    found = read_record([str(new), str(old)]).requests
    assert [each.timestamp_ms for each in found] == [line["timestamp"] for line in LINES]


def test_a_record_of_many_files_is_opened_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(tmp_path / f"a.jsonl.{number}") for number in range(8)]
    for name, line in zip(names, LINES * 2, strict=True):
        Path(name).write_bytes(content(HEADER, line))
    opened = set[str]()

    def count(path: str) -> Iterator[Line]:
        opened.add(path)
        assert opened == {path}, "one file handle is enough"
        yield from read_lines(path)
        opened.remove(path)

    monkeypatch.setattr(trace, "read_lines", count)
    assert len(read_record(names).requests) == 8


def test_headers_are_in_the_order_of_the_paths_whichever_was_written_last(tmp_path: Path) -> None:
    names = [str(tmp_path / f"a-{number}.jsonl") for number in range(4)]
    for written, (number, name) in enumerate(reversed(list(enumerate(names)))):
        Path(name).write_bytes(content({**HEADER, "process": number}, LINES[number]))
        os.utime(name, (written, written))
    found = read_record(names).headers
    assert list(found) == names
    assert [header.process for header in found.values()] == [0, 1, 2, 3]


def test_a_file_that_is_rotated_away_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [tmp_path / "a.jsonl.1", tmp_path / "a.jsonl"]
    for name in names:
        name.write_bytes(content(HEADER, LINES[0]))

    def remove(line: Line) -> Header | None:
        names[1].unlink()
        return header_of(line)

    monkeypatch.setattr(trace, "header_of", remove)
    with pytest.raises(TraceError, match="rotated away") as caught:
        read_record([str(each) for each in names])
    assert str(names[1]) in str(caught.value)
