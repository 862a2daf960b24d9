"""What processes on this machine use, by the kernel's account: CPU time and memory."""

import contextlib
import os
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """CPU time so far of all threads that a process has now."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def memory_mib(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20
