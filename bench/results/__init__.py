"""What a measurement is written as: summaries, tables, JSON, pictures, and the machine it ran on.

Entered by every command and room of bench; knows none of them.
"""

from .columns import Column, facts_table, figure_of, millions, percent, rows_table, spread_table
from .confidence import STUDENT_T, bootstrap_interval, geometric_mean, ratio_interval
from .environment import cpu_seconds, memory_mib, pin_to_core, unpin
from .kept_lines import read_kept
from .measurement import Benchmark, Measurement, measure_in_turns, settings_of, turns
from .objectives import Goodput, ObjectiveConfig
from .output import Output, format_number, new_table, write_json
from .pictures import prepare_plots, require_matplotlib, save_figure
from .report import Run, runs_content, runs_table
from .summary import Summary, percentiles, spread, summarise, summarise_weighted
