"""What a measurement is written as: summaries, tables, JSON, pictures, and the machine it ran on.

Entered by every command and room of bench; knows none of them.
"""

from .confidence import bootstrap_interval, geometric_mean, ratio_interval
from .environment import cpu_seconds, describe_environment, memory_mib, pin_to_core, unpin
from .objectives import Goodput, ObjectiveConfig
from .output import Output, format_number, new_table, write_json
from .pictures import prepare_plots, require_matplotlib, save_figure
from .report import Run, runs_content, runs_table
from .summary import Summary, percentiles, spread, summarise, summarise_weighted

__all__ = [
    "Goodput",
    "ObjectiveConfig",
    "Output",
    "Run",
    "Summary",
    "bootstrap_interval",
    "cpu_seconds",
    "describe_environment",
    "format_number",
    "geometric_mean",
    "memory_mib",
    "new_table",
    "percentiles",
    "pin_to_core",
    "prepare_plots",
    "ratio_interval",
    "require_matplotlib",
    "runs_content",
    "runs_table",
    "save_figure",
    "spread",
    "summarise",
    "summarise_weighted",
    "unpin",
    "write_json",
]
