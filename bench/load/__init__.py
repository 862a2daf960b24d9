"""Live load: a client that replays a trace, what it counts, and the processes it needs.

Entered by the commands `replay`, `demo`, `proxy`, `path`, `fronts`, `selection` and `hostile`.
"""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .completion_client import CompletionClient
from .http_client import HttpClient
from .progress import OnStart, progress_bar
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

if TYPE_CHECKING:
    from .client import LoadClient, encode_generate
    from .dynamo_peer import DynamoPeer, free_port
    from .dynamo_selector import DynamoSelector
    from .envoy_peer import start_envoy
    from .proxy_peers import CLIENT_OPTIONS, GENERATE, Methods, open_call, start_child, start_peer

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

_PROXY = ("CLIENT_OPTIONS", "GENERATE", "Methods", "open_call", "start_child", "start_peer")
# gRPC's library and clients of HTTP come with them.
__getattr__ = lazy_names(
    __name__,
    {"LoadClient": ".client", "encode_generate": ".client"}
    | {"DynamoPeer": ".dynamo_peer", "free_port": ".dynamo_peer"}
    | {"DynamoSelector": ".dynamo_selector", "start_envoy": ".envoy_peer"}
    | dict.fromkeys(_PROXY, ".proxy_peers"),
)
