"""What a grid keeps of its runs: JSON lines in a file, from which it goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ...base.errors import ConfigError

Run = TypeVar("Run")


def read_kept(path: str, parse: Callable[[Any], Run]) -> list[Run]:
    """What `parse` makes of each line of `--out`; ConfigError if one is no run of that grid. No
    file: none."""
    found: list[Run] = []
    if not Path(path).exists():
        return found
    for place, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"out: {path}, line {place} is no run of a grid", key="out") from None
    return found
