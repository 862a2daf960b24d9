"""Live load: a client that replays a trace, what it counts, and the processes it needs.

Entered by the commands `replay` and `demo`, and by the benchmarks of running routers.
"""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .chat_client import ChatClient, chars_per_token
from .child import OURS, pid_of, start_child
from .completion_client import CompletionClient
from .http_client import HttpClient
from .neighbours import children_of
from .progress import OnStart, progress_bar
from .serve_process import UNANNOUNCED, ServeProcess, mock_fleet_arguments, worker_arguments
from .stats import LoadStats
from .target import TargetAccess
from .way import (
    Ask,
    Load,
    Timing,
    Way,
    Ways,
    generate_bodies,
    generate_call,
    new_prompts,
    ways_tables,
)

if TYPE_CHECKING:
    from .client import LoadClient, encode_generate
    from .dynamo_peer import DISCOVERY_ARGUMENTS, start_dynamo, start_dynamo_selector
    from .envoy_peer import start_envoy
    from .proxy_peers import (
        GENERATE,
        engine_methods,
        open_call,
        serve_until_killed,
        start_peer,
    )
    from .smg_peer import start_smg

# gRPC's library and clients of HTTP come with them.
_LAZY = {
    ".client": ("LoadClient", "encode_generate"),
    ".dynamo_peer": ("DISCOVERY_ARGUMENTS", "start_dynamo", "start_dynamo_selector"),
    ".envoy_peer": ("start_envoy",),
    ".proxy_peers": (
        "GENERATE",
        "engine_methods",
        "open_call",
        "serve_until_killed",
        "start_peer",
    ),
    ".smg_peer": ("start_smg",),
}
__getattr__ = lazy_names(
    __name__, {name: module for module, names in _LAZY.items() for name in names}
)
