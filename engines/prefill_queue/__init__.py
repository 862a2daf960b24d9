"""How does a decode engine have its prompts computed by whichever prefill engine is free?

The flow of the design documents, over a queue in JetStream: docs/prefill_queue.md. Decode engines
have `RemotePrefills`, prefill engines a `PrefillConsumer`; both know each other's blocks by
`engines.transfer`.
"""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from .config import PrefillQueueConfig

if TYPE_CHECKING:
    from .consumer import ComputedPrompt, PrefillConsumer
    from .messages import RemotePrefillRequest
    from .metrics import QueueMetrics
    from .names import QueueNames
    from .remote_prefills import QueuedPrompt, RemotePrefillError, RemotePrefills
    from .thresholds import PrefillThresholds, Thresholds

# Settings are read without NATS' client.
__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("ComputedPrompt", "PrefillConsumer"), ".consumer"),
        "RemotePrefillRequest": ".messages",
        "QueueMetrics": ".metrics",
        "QueueNames": ".names",
        **dict.fromkeys(
            ("QueuedPrompt", "RemotePrefillError", "RemotePrefills"), ".remote_prefills"
        ),
        **dict.fromkeys(("PrefillThresholds", "Thresholds"), ".thresholds"),
    },
)
