"""Request traces: read, given tokens, and taken apart (prefixes, turns, reuse, similarity).

Entered by commands, synthesizer, simulation and index.
"""

from ._tokens import mix_values
from .analysis import Samples, Spread, TraceAnalysis, analyze
from .cache_curve import default_sizes
from .columns import TraceColumns, columns_of, read_columns
from .plots import check_plot_target, plot_traces
from .prefix_tree import PrefixTree, build_tree
from .similarity import trace_distances
from .trace import (
    Record,
    RecordedRequest,
    TraceRequest,
    encode_request,
    read_record,
    read_trace,
    token_ids,
    write_tokens,
)
from .trace_lines import TRACE_BLOCK_SIZE, block_size_of, check_trace_block_size, files_of
from .turn_trace import Turn, read_turns
from .turns import Turns, find_turns
