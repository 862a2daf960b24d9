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
    TRACE_BLOCK_SIZE,
    TraceRequest,
    check_trace_block_size,
    encode_request,
    read_trace,
    token_ids,
    write_tokens,
)
from .turn_trace import Turn, read_turns
from .turns import Turns, find_turns
