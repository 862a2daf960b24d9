"""The lines of a trace's files, compressed or not, and what a record says of itself before them."""

import glob
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec

from ...base.errors import ConfigError
from ...process.settings import bad_setting
from ...server.record_format import FORMAT, VERSION, Header

TRACE_BLOCK_SIZE = 512
"""Tokens that one hash id of a trace stands for, where nothing says so."""
# A prompt of a million tokens is 2000 ids, so a longer line is no trace but some other file.
MAX_LINE_BYTES = 16 << 20
YEARS = range(1970, 9000)
"""In which a record may begin."""
_GZIP_MAGIC = b"\x1f\x8b"
_PATTERN = frozenset("*?[")


class TraceError(ConfigError):
    """A trace that cannot be used; `path`, and `line` (from 1) where one line is at fault."""

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line


class Line(NamedTuple):
    """A line that is not empty, and where it stands."""

    path: str
    number: int
    data: bytes


class _Kind(msgspec.Struct):
    """By what a record's first line differs from a request."""

    format: str = ""
    version: int = 0


def check_trace_block_size(tokens: int | None) -> None:
    """ConfigError unless one hash id may stand for this many tokens: 1 to 2**20."""
    if tokens is not None and not 1 <= tokens <= 2**20:
        raise bad_setting("trace_block_size", f"{tokens} must be from 1 to 2**20")


def files_of(trace: str | Path) -> list[str]:
    """The file, or the files that a pattern names where no file has that name. TraceError if the
    pattern names none."""
    name = str(trace)
    if not _PATTERN.intersection(name) or Path(name).exists():
        return [name]
    found = sorted(glob.glob(name))
    if not found:
        raise TraceError(name, None, "no file has such a name")
    return found


def read_lines(path: str) -> Iterator[Line]:
    """The lines of one file. TraceError if it cannot be read, its compressed data are damaged or
    end early, or a line is too long."""
    number = 0
    try:
        with _opened(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise TraceError(path, number, f"line is longer than {MAX_LINE_BYTES} bytes")
                if not line.isspace():
                    yield Line(path, number, line)
    except EOFError as error:
        text = (
            f"the compressed data end early, after line {number}: it was cut, or is being copied;"
            f" `gzip -dc {path} | head -n {number} > WHOLE.jsonl` keeps what is whole"
        )
        raise TraceError(path, None, text) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        text = f"the compressed data are damaged after line {number}: {error}"
        raise TraceError(path, None, text) from error
    except OSError as error:
        raise TraceError(path, None, f"cannot be read: {error.strerror or error}") from error


def header_of(line: Line) -> Header | None:
    """What a record's first line says; None: it is the first line of some other trace. TraceError
    for a record of another version."""
    try:
        kind = msgspec.json.decode(line.data, type=_Kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if kind.format != FORMAT:
        return None
    if kind.version != VERSION:
        text = f"a record of version {kind.version}; this program reads version {VERSION}"
        raise TraceError(line.path, line.number, text)
    try:
        header = msgspec.json.decode(line.data, type=Header)
        if datetime.fromisoformat(header.began).year not in YEARS:
            raise ValueError(f"began {header.began!r} is no time of a record")
    except ValueError as error:  # of msgspec, of a text that is no UTF-8, of a time that is none
        raise TraceError(line.path, line.number, f"the record's header: {error}") from error
    return header


def read_header(trace: str | Path) -> Header | None:
    """That of a trace's first file; None if it is no record. TraceError as `read_lines`."""
    for line in read_lines(files_of(trace)[0]):
        return header_of(line)
    return None


def block_size_of(trace: str | Path, given: int | None) -> int:
    """Tokens that a hash id of the trace stands for: as it is given, as a record says, or 512.
    TraceError if the first two differ."""
    header = read_header(trace)
    if header is None:
        return TRACE_BLOCK_SIZE if given is None else given
    if given not in (None, header.block_size):
        text = f"a record in blocks of {header.block_size} tokens, not {given} (trace_block_size)"
        raise TraceError(str(trace), None, text)
    return header.block_size


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    with open(path, "rb") as file:
        packed = file.peek(2)[:2] == _GZIP_MAGIC
        if not packed:
            yield file
            return
        with gzip.open(file) as unpacked:
            yield cast("BinaryIO", unpacked)
