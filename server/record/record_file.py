"""RecordFile: lines on a disk that may fill up, in files that are rotated by size."""

import gzip
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

GZIP = ".gz"
COMPRESSION = 1
"""Higher levels of zlib take several times as long for a tenth less."""
MODE = 0o600

Write = Callable[[int, bytes], int]


def _compressor() -> Callable[..., bytes]:
    """That of ISA-L, which takes a third of zlib's time, where its wheel is installed."""
    try:
        return cast("Callable[..., bytes]", import_module("isal.igzip").compress)
    except (ImportError, AttributeError):
        return gzip.compress


_compress = _compressor()


class RecordFile:
    """Appends to `path`, which is begun with `header()`, until `close`.

    A file that would grow beyond `max_bytes` becomes PATH.1, the one before PATH.2 and so on; of
    `kept` files in all, the oldest goes. What another run has left at `path` is moved on likewise.
    Each batch is a gzip member of its own, if the name ends in .gz: the file is whole after each.
    Not thread-safe. `write` is os.write, except where a test has a disk that fails.
    """

    def __init__(
        self,
        path: Path,
        header: Callable[[], bytes],
        *,
        max_bytes: int,
        kept: int,
        write: Write = os.write,
    ) -> None:
        self.path = path
        self.header = header
        self._max_bytes, self._kept, self._write = max_bytes, kept, write
        self._packs = path.name.endswith(GZIP)
        self._file: int | None = None
        self._size = 0

    def append(self, lines: Sequence[bytes]) -> int:
        """Bytes that were written for them, in a new file with its header.

        OSError if they cannot be: none of them is in the file then, which stays whole.
        """
        data = self._packed(lines)
        if self._file is not None and (
            self._size + len(data) > self._max_bytes or not self._is_in_place(self._file)
        ):
            self.close()
        if self._file is None:
            self._begin()
            data = self._packed([self.header(), *lines])
        self._write_all(data)
        return len(data)

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _packed(self, lines: Sequence[bytes]) -> bytes:
        data = b"".join(lines)
        return _compress(data, COMPRESSION, mtime=0) if self._packs else data

    def _begin(self) -> None:
        """Move the files that there are on, and begin a new one."""
        if os.path.lexists(self.path):
            for number in range(self._kept - 1, 0, -1):
                older = self._numbered(number - 1)
                if os.path.lexists(older):
                    os.replace(older, self._numbered(number))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file, self._size = os.open(self.path, flags, MODE), 0

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path

    def _is_in_place(self, file: int) -> bool:
        """Whether the path still names the open file, which was neither moved nor removed."""
        try:
            return os.path.samestat(os.fstat(file), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _write_all(self, data: bytes) -> None:
        assert self._file is not None
        left = memoryview(data)
        try:
            while left:
                left = left[self._write(self._file, bytes(left)) :]
        except OSError:
            if self._size:
                os.ftruncate(self._file, self._size)
                os.lseek(self._file, self._size, os.SEEK_SET)
            else:  # without its header it is no record
                self.close()
                self.path.unlink(missing_ok=True)
            raise
        self._size += len(data)
