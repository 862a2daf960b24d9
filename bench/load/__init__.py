"""Live load: a client that replays a trace, what it counts, and the processes it needs.

Entered by the commands `replay`, `demo`, `proxy`, `path`, `fronts`, `selection` and `hostile`.
"""

from .client import LoadClient, encode_generate
from .completion_client import CompletionClient
from .dynamo_peer import DynamoPeer, free_port
from .dynamo_selector import DynamoSelector
from .envoy_peer import start_envoy
from .http_client import HttpClient
from .progress import OnStart, progress_bar
from .proxy_peers import CLIENT_OPTIONS, GENERATE, Methods, open_call, start_child, start_peer
from .serve_process import READY, ServeProcess, mock_fleet_arguments
from .stats import LoadStats
from .target import TargetAccess
from .way import (
    Ask,
    Measured,
    Neighbours,
    Timing,
    Way,
    children_of,
    generate_bodies,
    generate_call,
    new_prompts,
    noise_content,
    noise_words,
    ratio,
)

__all__ = [
    "Ask",
    "CompletionClient",
    "CLIENT_OPTIONS",
    "GENERATE",
    "DynamoPeer",
    "DynamoSelector",
    "HttpClient",
    "LoadClient",
    "LoadStats",
    "Measured",
    "Methods",
    "Neighbours",
    "OnStart",
    "READY",
    "ServeProcess",
    "TargetAccess",
    "Timing",
    "Way",
    "children_of",
    "encode_generate",
    "free_port",
    "generate_bodies",
    "generate_call",
    "mock_fleet_arguments",
    "new_prompts",
    "noise_content",
    "noise_words",
    "open_call",
    "progress_bar",
    "ratio",
    "start_child",
    "start_envoy",
    "start_peer",
]
