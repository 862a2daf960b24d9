"""Where a command's results go: tables to the terminal, JSON to a file or to stdout."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from ...base.errors import ConfigError
from .environment import describe_environment


class Output:
    """The tables and the JSON of one command.

    `json` is the value of its --json: a file, "-" for stdout, None for no JSON. Tables go to
    stdout, or to stderr where stdout carries the JSON or `tables_on_stderr` says so; `width` is
    that of tables in a file. Raises ConfigError if `json` cannot be written: before an hour of
    measuring, not after it.
    """

    def __init__(
        self, json: str | None, *, width: int = 120, tables_on_stderr: bool = False
    ) -> None:
        _check_json_target(json)
        self._json = json
        self._console = Console(stderr=tables_on_stderr or json == "-", highlight=False)
        if not self._console.is_terminal:
            # A file has no width; rich would take 80 and break the cells.
            self._console.width = width

    def print(self, what: RenderableType) -> None:
        """Show a table, or a line of text."""
        self._console.print(what)

    def write(self, content: Mapping[str, Any], *, timeless: bool = False) -> None:
        """Write `content` and the environment as JSON, if JSON is wanted.

        `timeless` leaves out of the environment what differs from one moment to the next, for
        results that do not. ConfigError if the file cannot be written.
        """
        if self._json is not None:
            environment = describe_environment(timeless=timeless)
            write_json(self._json, {**content, "environment": environment})


def write_json(target: str, content: Mapping[str, Any]) -> None:
    """Write `content`, numbers rounded, to the file `target`, or to stdout if it is "-".

    ConfigError if the file cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(_rounded(content)), indent=2).decode() + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(target).write_text(text)
    except OSError as error:
        message = f"cannot write {target}: {error.strerror or error}"
        raise ConfigError(message, key="json") from error


def _check_json_target(target: str | None) -> None:
    if target in (None, "-"):
        return
    path = Path(str(target))
    if path.is_dir():
        raise ConfigError(f"cannot write {target}: it is a directory", key="json")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {target}: no such directory", key="json")


def new_table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the one look that all commands share."""
    return Table(*columns, title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")


def format_number(value: float | None, digits: int) -> str:
    """A cell of a table: `digits` decimals, commas between thousands; "-" for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def _rounded(value: Any) -> Any:
    """Six significant digits are more than any of these measurements hold."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
