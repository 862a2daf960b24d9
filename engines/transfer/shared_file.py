"""SharedFile: an engine's blocks and their epochs as a file that engines of one host map.

    page 0          b"DYNRTRKV", then what it holds (two u64: blocks, words of all of them)
    epochs          u64 for each block, up to a whole page
    blocks          of rank 0, then rank 1, ...

Locks are those of open file descriptions (fcntl F_OFD_SETLK): they hold between threads as between
processes, and end with the process that has them, however it ends. The owner has byte 0 locked
while it lives; a writer locks the byte that the first epoch of its grant numbers, while it copies.
"""

import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...base.errors import ConfigError
from .arena import ArenaLayout, BlockArena
from .doorbell import BELL, is_listening
from .tickets import TransferError

SUFFIX, NEW = ".kv", ".new"
_MAGIC = b"DYNRTRKV"
_PAGE = 4096
_HEAD = struct.Struct("<8sQQ")
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid."""
_LIFE = 0
_STALE_S = 60.0
"""Age of a file that was never finished, from which its maker is taken for dead."""


def set_lock(file: int, byte: int, kind: int) -> bool:
    """Lock or unlock (F_WRLCK, F_UNLCK) one byte; False if another has it locked."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_locked(file: int, byte: int) -> bool:
    """Whether another open description has the byte locked."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
    kind, *_ = _FLOCK.unpack(found)
    return int(kind) != fcntl.F_UNLCK


class SharedFile:
    """Mapped, until `close`. Made by `create` by its owner, and by `open` by others."""

    def __init__(self, path: Path, file: int, layout: ArenaLayout, blocks: int) -> None:
        self.path, self.file, self.blocks = path, file, blocks
        self._map = mmap.mmap(file, _size(layout, blocks))
        first = _PAGE + _pages(8 * blocks)
        self.epochs: npt.NDArray[np.uint64] = np.frombuffer(self._map, np.uint64, blocks, _PAGE)
        words = blocks * layout.bytes_per_block // 8
        self.arena = BlockArena(layout, blocks, np.frombuffer(self._map, np.uint64, words, first))

    @classmethod
    def create(cls, folder: Path, engine_id: str, layout: ArenaLayout, blocks: int) -> "SharedFile":
        """Of a new engine, all zeroes. ConfigError if there is no room for it."""
        size = _size(layout, blocks)
        path, new = folder / f"{engine_id}{SUFFIX}", folder / f"{engine_id}{NEW}"
        try:
            file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _no_file(size, folder, error) from None
        try:
            if size > _free_bytes(folder):  # else it takes all there is from others, and then fails
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(file, 0, size)  # a page that cannot be had later would be a SIGBUS
            os.pwrite(file, _HEAD.pack(_MAGIC, blocks, size), 0)
            set_lock(file, _LIFE, fcntl.F_WRLCK)
            made = cls(path, file, layout, blocks)
            os.rename(new, path)  # seen once it is whole and locked
        except OSError as error:
            os.close(file)
            new.unlink(missing_ok=True)
            raise _no_file(size, folder, error) from None
        return made

    @classmethod
    def open(cls, folder: Path, engine_id: str, layout: ArenaLayout, blocks: int) -> "SharedFile":
        """Of another engine. TransferError: dead if it is gone, mismatch if its file is another."""
        path = folder / f"{engine_id}{SUFFIX}"
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise TransferError(f"engine {engine_id} has no memory here", "dead") from None
        except OSError as error:
            text = f"the memory of engine {engine_id}: {error.strerror or error}"
            raise TransferError(text, "unavailable") from None
        size = _size(layout, blocks)
        try:
            if not is_locked(file, _LIFE):
                raise TransferError(f"engine {engine_id} is gone", "dead")
            head = os.pread(file, _HEAD.size, 0)
            if os.fstat(file).st_size != size or head != _HEAD.pack(_MAGIC, blocks, size):
                text = f"the memory of engine {engine_id} and its metadata differ"
                raise TransferError(text, "mismatch")
            return cls(path, file, layout, blocks)
        except BaseException:
            os.close(file)
            raise

    @property
    def owner_is_dead(self) -> bool:
        """For those that opened it: its owner's process has ended, or closed it."""
        return not is_locked(self.file, _LIFE)

    def epochs_are(self, blocks: Sequence[int], epochs: Sequence[int]) -> bool:
        found: list[int] = self.epochs[list(blocks)].tolist()
        return found == list(epochs)

    def close(self, unlink: bool = False) -> None:
        """Unmap. Its arena has no memory any more. Idempotent."""
        if self.file < 0:
            return
        self.arena.words = np.zeros(0, np.uint64)
        self.epochs = self.epochs.copy()
        try:
            self._map.close()
        finally:
            os.close(self.file)
            self.file = -1
            if unlink:
                self.path.unlink(missing_ok=True)


def sweep(folder: Path) -> int:
    """Remove what engines left that were killed: how many files."""
    removed = 0
    for bell in folder.glob(f"*{BELL}"):
        if not is_listening(bell):
            bell.unlink(missing_ok=True)
            removed += 1
    for path in [*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{NEW}")]:
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            unfinished = path.suffix == NEW
            if is_locked(file, _LIFE) or (
                unfinished and time.time() - os.fstat(file).st_mtime < _STALE_S
            ):
                continue
            path.unlink(missing_ok=True)
            removed += 1
        finally:
            os.close(file)
    return removed


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _size(layout: ArenaLayout, blocks: int) -> int:
    return _PAGE + _pages(8 * blocks) + blocks * layout.bytes_per_block


def _no_file(size: int, folder: Path, error: OSError) -> ConfigError:
    text = f"transfer_folder: no {size >> 20} MiB of blocks in {folder}: {error.strerror or error}"
    if error.errno == errno.ENOSPC:
        free = _free_bytes(folder) >> 20
        text += f" ({free} MiB are free in the file system at {_mount_of(folder)})"
    return ConfigError(text, key="transfer_folder")


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def _mount_of(folder: Path) -> Path:
    folder = folder.resolve()
    return next(each for each in (folder, *folder.parents) if os.path.ismount(each))
