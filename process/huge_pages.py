"""use_huge_pages: what a process has allocated lies in few pages, which are found sooner."""

import ctypes
import mmap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SYSTEM = Path("/sys/kernel/mm/transparent_hugepage")
_MAPS = Path("/proc/self/maps")
_MADV_COLLAPSE = 25
_MOST_EMPTY = 4
"""A huge page is filled up and moved if at most one part in this many of it is empty."""
MOST_S = 0.5
"""Nothing else runs meanwhile: an index of gigabytes would take longer than leases last."""


def use_huge_pages(system: Path = SYSTEM, clock: Callable[[], float] = time.monotonic) -> int:
    """Move what was allocated so far into huge pages, where nearly all of one is in use; how many
    there are now. Takes some milliseconds each, and about MOST_S in all: what is left then stays
    as it is. 0 where the system has none, or is not to use them.

    For a process that stays: what a request touches is spread over all that was loaded before it,
    and after each sleep every small page of that is looked up anew. `clock`: of seconds.
    """
    began = clock()
    try:
        if "[never]" in (system / "enabled").read_text():
            return 0
        size = int((system / "hpage_pmd_size").read_text())
        maps = _MAPS.read_bytes()
        libc = ctypes.CDLL(None)
        madvise, mincore = libc.madvise, libc.mincore
    except (OSError, ValueError, AttributeError):
        return 0
    small = size // mmap.PAGESIZE
    present = (ctypes.c_ubyte * small)()
    moved = 0
    for address in _whole_pages(maps, size):
        if clock() - began >= MOST_S:
            break
        at, length = ctypes.c_void_p(address), ctypes.c_size_t(size)
        if mincore(at, length, present) != 0:
            continue
        empty = small - sum(each & 1 for each in present)
        if empty * _MOST_EMPTY <= small:
            moved += madvise(at, length, _MADV_COLLAPSE) == 0
    return moved


def _whole_pages(maps: bytes, size: int) -> Iterator[int]:
    """Where huge pages would be in memory of no file that only this process has."""
    for line in maps.split(b"\n"):  # names of files may be no text, or have other ends of lines
        bounds, allowed, _, _, inode, *name = line.split(maxsplit=5) or [b""] * 5
        if allowed != b"rw-p" or inode != b"0" or (name and name[0].startswith(b"[stack")):
            continue
        begin, end = (int(bound, 16) for bound in bounds.split(b"-"))
        yield from range(-(-begin // size) * size, end // size * size, size)
