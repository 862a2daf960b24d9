"""The files of a record: whole after each batch, rotated, and never half written."""

import errno
import gzip
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dynamo_router.server.record import record_file
from dynamo_router.server.record.record_file import RecordFile

HEADER = b"header\n"


class Disk:
    """A disk with room for so many bytes, which writes a part of what does not fit."""

    def __init__(self, space: int) -> None:
        self.space = space

    def write(self, file: int, data: bytes) -> int:
        if self.space <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(file, data[: self.space])
        self.space -= written
        return written


def new_file(
    path: Path, *, most: int = 1 << 20, kept: int = 3, write: Callable[[int, bytes], int] = os.write
) -> RecordFile:
    return RecordFile(path, lambda: HEADER, max_bytes=most, kept=kept, write=write)


def test_the_first_line_is_the_header(tmp_path: Path) -> None:
    file = new_file(tmp_path / "a.jsonl")
    assert not list(tmp_path.iterdir())
    file.append([b"one\n", b"two\n"])
    file.append([b"three\n"])
    assert file.path.read_bytes() == b"header\none\ntwo\nthree\n"
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.close()
    file.close()


def test_a_compressed_file_is_whole_after_each_batch(tmp_path: Path) -> None:
    file = new_file(tmp_path / "a.jsonl.gz")
    for number in range(3):
        file.append([b"%d\n" % number])
        wanted = HEADER + b"".join(b"%d\n" % n for n in range(number + 1))
        assert gzip.decompress(file.path.read_bytes()) == wanted
    file.close()


@pytest.mark.parametrize("isal", [None, SimpleNamespace()], ids=["missing", "another"])
def test_without_isal_the_standard_library_compresses(
    isal: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "isal.igzip", isal)
    assert record_file._compressor() is gzip.compress


def test_files_move_on_and_the_oldest_goes(tmp_path: Path) -> None:
    file = new_file(tmp_path / "a.jsonl", most=20, kept=3)
    for number in range(8):
        file.append([b"line-%d\n" % number])
    file.close()
    found = {path.name: path.read_text().split()[1:] for path in tmp_path.iterdir()}
    assert found == {
        "a.jsonl": ["line-6", "line-7"][-len(found["a.jsonl"]) :],
        "a.jsonl.1": found["a.jsonl.1"],
        "a.jsonl.2": found["a.jsonl.2"],
    }
    lines = [*found["a.jsonl.2"], *found["a.jsonl.1"], *found["a.jsonl"]]
    assert lines == [f"line-{number}" for number in range(8)][-len(lines) :]
    assert all(path.read_text().startswith("header\n") for path in tmp_path.iterdir())
    assert all(path.stat().st_size <= 20 for path in tmp_path.iterdir())


def test_one_file_alone_is_kept(tmp_path: Path) -> None:
    file = new_file(tmp_path / "a.jsonl", most=10, kept=1)
    file.append([b"one\n"])
    file.append([b"two\n"])
    file.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"header\ntwo\n"]


def test_what_another_run_has_left_is_moved_on(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("old\n")
    file = new_file(tmp_path / "a.jsonl")
    file.append([b"new\n"])
    file.close()
    assert (tmp_path / "a.jsonl.1").read_text() == "old\n"
    assert (tmp_path / "a.jsonl").read_bytes() == b"header\nnew\n"


@pytest.mark.parametrize("moved", [True, False])
def test_a_file_that_was_moved_or_removed_is_begun_again(tmp_path: Path, moved: bool) -> None:
    file = new_file(tmp_path / "a.jsonl")
    file.append([b"one\n"])
    if moved:
        file.path.rename(tmp_path / "b.jsonl")
    else:
        file.path.unlink()
    file.append([b"two\n"])
    file.close()
    assert file.path.read_bytes() == b"header\ntwo\n"


def test_a_full_disk_leaves_the_file_whole(tmp_path: Path) -> None:
    disk = Disk(20)
    file = new_file(tmp_path / "a.jsonl", write=disk.write)
    file.append([b"one\n"])
    with pytest.raises(OSError, match="No space left"):
        file.append([b"x" * 50 + b"\n"])
    assert file.path.read_bytes() == b"header\none\n"
    disk.space = 100
    file.append([b"two\n"])
    file.close()
    assert file.path.read_bytes() == b"header\none\ntwo\n"


def test_a_file_without_its_header_is_not_left_behind(tmp_path: Path) -> None:
    disk = Disk(3)
    file = new_file(tmp_path / "a.jsonl", write=disk.write)
    with pytest.raises(OSError, match="No space left"):
        file.append([b"one\n"])
    assert not list(tmp_path.iterdir())
    disk.space = 100
    file.append([b"one\n"])
    file.close()
    assert file.path.read_bytes() == b"header\none\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious\n")
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "target")
    file = new_file(tmp_path / "a.jsonl", kept=2)
    file.append([b"one\n"])
    file.close()
    assert (tmp_path / "target").read_text() == "precious\n"
    assert (tmp_path / "a.jsonl").read_bytes() == b"header\none\n"
