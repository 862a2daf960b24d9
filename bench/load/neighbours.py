"""What else the machine does while something is measured, and which processes belong to it."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOISY = 0.1
"""Share of the machine's CPU beside ours from which figures are not to be believed."""


class Neighbours:
    """How much of the machine's CPU others use while something is measured."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._busy = _busy_seconds()

    def share(self, own_seconds: float) -> float:
        """Of all cores' time since then, what was used beside `own_seconds`."""
        took = time.perf_counter() - self._began
        others = _busy_seconds() - self._busy - own_seconds
        return max(0.0, others) / (took * (os.cpu_count() or 1))


def noise_content(others: float) -> dict[str, Any]:
    """What a result has of its neighbours, in the shape that scripts read."""
    return {"others_cpu_share": others, "too_noisy": others > NOISY}


def noise_words(result: Mapping[str, Any]) -> list[str]:
    """The same to be read; whether the result is to be believed."""
    lines = [f"others used {result['others_cpu_share']:.0%} of the machine's CPU meanwhile"]
    if result["too_noisy"]:
        lines.append(f"too noisy: above {NOISY:.0%} neighbours are measured, too; repeat it")
    return lines


def _busy_seconds() -> float:
    """CPU time of the whole machine in use, or taken by other machines beside it, so far."""
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = times[3] + times[4]
    return (sum(times) - idle) / float(os.sysconf("SC_CLK_TCK"))


def children_of(parent: int) -> Mapping[int, str]:
    """Command lines of a process's children, by their ids."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            stat = (folder / "stat").read_text()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            found[int(folder.name)] = line
    return found
