"""What a measurement is written as: summaries, tables, JSON, and the machine it ran on.

Entered by every command; knows no command.
"""

from .environment import describe_environment, pin_to_core, unpin
from .report import (
    Run,
    Summary,
    check_json_target,
    document,
    new_table,
    number,
    percentiles,
    runs_table,
    spread,
    summarise,
    summarise_weighted,
    table_console,
    write_benchmark,
    write_json,
)

__all__ = [
    "Run",
    "Summary",
    "check_json_target",
    "describe_environment",
    "document",
    "new_table",
    "number",
    "percentiles",
    "pin_to_core",
    "runs_table",
    "spread",
    "summarise",
    "summarise_weighted",
    "table_console",
    "unpin",
    "write_benchmark",
    "write_json",
]
