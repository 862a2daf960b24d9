"""What was run is kept in a folder, so that an evaluation that was interrupted goes on.

A file for each cell, a line for each run. A line counts if the code that ran it is today's, and it
is of as many requests: figures of another version would make a report a mixture of both.
"""

import hashlib
import json
import math
from functools import cache
from pathlib import Path

from ...process.settings import bad_setting
from .cells import EvaluationCell
from .figures import Figures

# Folders that decide what a run comes to; bench is in it for traffic, simulation and splits.
CODE = ("router", "slots", "indexer", "workers", "runtime", "bench")


@cache
def code_digest() -> str:
    """Of the modules and kernels of this installation."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".so"):
                digest.update(str(path.relative_to(root)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class KeptRuns:
    """The runs of one split in a folder. ConfigError if it cannot be made."""

    def __init__(self, folder: Path, *, requests: int) -> None:
        self._folder, self._requests = folder, requests
        self.outdated = 0  # lines of other code
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = f"cannot write into {folder}: {error.strerror or error}"
            raise bad_setting("cache", text) from None

    def read(self, cell: EvaluationCell) -> dict[tuple[str, int], Figures]:
        """By policy and seed. A line that is cut off, as a crash leaves it, is passed over.

        None in a file is infinite: no request was served.
        """
        found: dict[tuple[str, int], Figures] = {}
        path = self._path(cell)
        if not path.exists():
            return found
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
                policy, seed, figures = row["policy"], row["seed"], row["figures"]
                mine = row["code"] == code_digest() and row["requests"] == self._requests
            except (ValueError, KeyError, TypeError):
                continue
            self.outdated += not mine
            if mine:
                known = {k: math.inf if v is None else float(v) for k, v in figures.items()}
                found[policy, seed] = known
        return found

    def add(self, cell: EvaluationCell, policy: str, seed: int, figures: Figures) -> None:
        """Keep a run."""
        row = {
            "cell": str(cell),
            "policy": policy,
            "seed": seed,
            "requests": self._requests,
            "code": code_digest(),
            "figures": {k: v if math.isfinite(v) else None for k, v in figures.items()},
        }
        with open(self._path(cell), "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _path(self, cell: EvaluationCell) -> Path:
        fleet = f"{cell.fleet.workers}x{cell.fleet.num_gpu_blocks}x{cell.fleet.load:g}"
        name = "-".join(filter(None, (cell.family, fleet, cell.error, cell.condition)))
        return self._folder / f"{name}.jsonl"
