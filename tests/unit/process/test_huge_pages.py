"""What was allocated is moved into huge pages where it fills them, and only where it may be."""

import itertools
import mmap
import os
from pathlib import Path

import pytest

from dynamo_router.process.huge_pages import MOST_S, SYSTEM, use_huge_pages

MANY = 16 << 20


def huge_kb() -> int:
    """Of this process."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    pytest.skip("the system does not say what lies in huge pages")


def resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE // 1024


@pytest.fixture
def system() -> Path:
    if not (SYSTEM / "enabled").exists():
        pytest.skip("the system has no huge pages")
    return SYSTEM


def told(folder: Path, enabled: str) -> Path:
    (folder / "enabled").write_text(enabled)
    (folder / "hpage_pmd_size").write_text(str(2 << 20))
    return folder


def test_what_is_filled_is_moved_and_stays_as_it_was(system: Path) -> None:
    filled = mmap.mmap(-1, MANY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        filled[:] = bytes(range(256)) * (MANY // 256)
        before = huge_kb()
        moved = use_huge_pages(system)
        if not moved:
            pytest.skip("the system moves nothing into huge pages at once")
        assert huge_kb() - before >= MANY // 1024 - 2 * 2048
        assert filled[:] == bytes(range(256)) * (MANY // 256)
    finally:
        filled.close()


def test_what_is_nearly_empty_takes_no_more(system: Path) -> None:
    use_huge_pages(system)
    empty = mmap.mmap(-1, 4 * MANY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        for at in range(0, 4 * MANY, 1 << 20):
            empty[at] = 1
        before = resident_kb()
        use_huge_pages(system)
        assert resident_kb() - before < MANY // 1024
    finally:
        empty.close()


@pytest.mark.parametrize("enabled", ["always madvise [never]", None])
def test_a_system_without_them_is_left_alone(tmp_path: Path, enabled: str | None) -> None:
    before = huge_kb()
    filled = mmap.mmap(-1, MANY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        filled[:] = b"x" * MANY
        assert use_huge_pages(tmp_path if enabled is None else told(tmp_path, enabled)) == 0
        assert huge_kb() <= before
    finally:
        filled.close()


def test_it_ends_when_its_time_is_over(system: Path) -> None:
    filled = mmap.mmap(-1, 2 * MANY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        filled[:] = b"x" * (2 * MANY)
        assert use_huge_pages(system, itertools.count(0, MOST_S / 4).__next__) <= 3
    finally:
        filled.close()


def test_files_may_have_names_that_are_no_text(system: Path, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9\x0b\xe2\x80\xa8x"))
    path.write_bytes(b"x" * mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        use_huge_pages(system)
