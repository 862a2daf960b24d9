"""Records as traces: each reader reads them, and what is wrong with one is named."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.bench.traces import read_columns
from dynamo_router.bench.traces.trace import read_record, read_trace
from dynamo_router.bench.traces.trace_lines import TraceError, block_size_of, files_of
from dynamo_router.bench.traces.turn_trace import read_turns

HEADER = {
    "format": "dynamo-router record",
    "version": 1,
    "block_size": 64,
    "record": "abc",
    "began": "2026-01-01T00:00:00.000+00:00",
    "engine_block_size": 16,
}


def request(at: float, *ids: int, **more: Any) -> dict[str, Any]:
    length = 64 * len(ids)
    return {
        "timestamp": at, "input_length": length, "output_length": 3, "hash_ids": ids,
        "status": "ok", "worker": "1", **more,
    }  # fmt: skip


def packed(*lines: object) -> bytes:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return gzip.compress("".join(f"{text}\n" for text in texts).encode())


def written(path: Path, *lines: object, header: Any = HEADER, **more: Any) -> Path:
    data = packed({**header, **more}, *lines)
    path.write_bytes(data if path.name.endswith(".gz") else gzip.decompress(data))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_record_is_read_in_the_order_of_arrival(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, request(5, 1, 2), "", request(2, 1, tenant="t"))
    first, second = read_trace(path)
    assert (first.timestamp_ms, first.hash_ids, first.tenant) == (2, (1,), "t")
    assert (second.timestamp_ms, second.hash_ids) == (5, (1, 2))
    assert [turn.request for turn in read_turns(path)] == [first, second]
    assert len(read_turns(path, limit=1)) == 1
    columns = read_columns(path)
    assert (columns.block_size, len(columns)) == (64, 2)
    assert columns.timestamps_ms.tolist() == [2, 5]


def test_a_compressed_trace_is_read_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(packed({**request(1, 7), "input_length": 300}))
    assert [each.hash_ids for each in read_trace(path)] == [(7,)]
    assert block_size_of(path, None) == 512 and block_size_of(path, 400) == 400


def test_files_of_one_record_are_read_together(tmp_path: Path) -> None:
    written(tmp_path / "a-0.jsonl.gz.1", request(3, 1))
    written(tmp_path / "a-0.jsonl.gz", request(9, 1))
    written(tmp_path / "a-1.jsonl.gz", request(4, 1, 2), process=1)
    pattern = str(tmp_path / "a-*")
    assert [each.timestamp_ms for each in read_trace(pattern)] == [3, 4, 9]
    assert [turn.request.timestamp_ms for turn in read_turns(pattern)] == [3, 4, 9]
    record = read_record(files_of(pattern))
    assert len(record.headers) == 3 and record.header.block_size == 64


def test_members_one_after_another_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed(HEADER) + packed(request(1, 1)) + packed(request(2, 1)))
    assert len(list(read_trace(path))) == 2


def refused(path: Path | str, **more: Any) -> TraceError:
    """How all readers refuse it."""
    errors = []
    for read in (lambda: list(read_trace(path, **more)), lambda: read_turns(path, **more),
                 lambda: read_columns(path, **more)):  # fmt: skip
        with pytest.raises(TraceError) as caught:
            read()
        errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    return errors[0]


def test_a_line_that_is_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", request(1, 1), request(2, 1))
    path.write_bytes(path.read_bytes()[:-20])
    error = refused(path)
    assert error.line == 3 and str(error).startswith(f"{path}:3: Input data was truncated")


def test_another_version(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl.gz", request(1, 1), version=2)
    text = f"{path}:1: a record of version 2; this program reads version 1"
    assert str(refused(path)) == text


def test_a_header_that_says_nothing_of_its_blocks(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", request(1, 1), header={**HEADER, "block_size": None})
    assert "the record's header: Expected `int`" in str(refused(path))


def test_another_block_size_than_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", request(1, 1))
    error = refused(path, trace_block_size=512)
    assert str(error) == (f"{path}: a record in blocks of 64 tokens, not 512 (trace_block_size)")
    assert len(list(read_trace(path, trace_block_size=64))) == 1


def test_a_line_of_another_block_size(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", {**request(1, 1), "input_length": 100})
    assert "1 hash_ids for 100 input tokens; blocks of 64 make 2" in str(refused(path))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"record": "xyz"}, "has other salts; read them apart"),
        ({"block_size": 128}, "blocks of 128 tokens, and those of"),
    ],
)
def test_files_that_do_not_belong_together(
    tmp_path: Path, more: dict[str, Any], reason: str
) -> None:
    written(tmp_path / "a.jsonl", request(1, 1))
    written(tmp_path / "b.jsonl", request(1, 1), **more)
    error = refused(str(tmp_path / "*.jsonl"))
    assert reason in str(error) and error.path == str(tmp_path / "b.jsonl")


def test_a_record_beside_some_other_trace(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", request(1, 1))
    (tmp_path / "b.jsonl").write_text(json.dumps(request(1, 1)) + "\n")
    assert "b.jsonl:1: no record" in str(refused(str(tmp_path / "*.jsonl")))
    (tmp_path / "a.jsonl").rename(tmp_path / "c.jsonl")
    text = "names 2 files: only those of a record are read together"
    assert text in str(refused(str(tmp_path / "*.jsonl")))


def test_several_files_without_a_record(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(json.dumps({**request(1, 1), "input_length": 512}) + "\n")
    assert "names 2 files: only those of a record" in str(refused(str(tmp_path / "[ab]")))


def test_a_pattern_without_a_file(tmp_path: Path) -> None:
    assert "no file has such a name" in str(refused(str(tmp_path / "a-*")))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_record_without_a_request(tmp_path: Path, name: str) -> None:
    assert "holds no request" in str(refused(written(tmp_path / name)))


@pytest.mark.parametrize("data", [b"", packed()])
def test_an_empty_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(data)
    assert str(refused(path)) == f"{path}: holds no request"


def test_compressed_data_that_end_early(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed(HEADER, request(1, 1)) + packed(request(2, 1))[:-12])
    error = refused(path)
    assert "the compressed data end early, after line" in str(error)
    assert f"gzip -dc {path} | head -n " in str(error)


def test_compressed_data_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed(HEADER, request(1, 1)) + b"junk that is no member")
    assert "the compressed data are damaged after line 2" in str(refused(path))


def test_a_folder_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in str(refused(tmp_path))
    assert "cannot be read: No such file" in str(refused(tmp_path / "none"))


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path / "a.jsonl", request(1, 1))
    monkeypatch.setattr("builtins.open", forbidden)
    assert str(refused(path)) == f"{path}: cannot be read: Permission denied"
