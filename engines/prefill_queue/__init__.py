"""How does a decode engine have its prompts computed by whichever prefill engine is free?

The flow of the design documents, over a queue in JetStream: docs/prefill_queue.md. Decode engines
have `RemotePrefills`, prefill engines a `PrefillConsumer`; both know each other's blocks by
`engines.transfer`.
"""

from .config import PrefillQueueConfig
from .consumer import ComputedPrompt, PrefillConsumer, PromptComputer
from .messages import (
    QueueMessageError,
    RemotePrefillRequest,
    encode_request,
    read_request,
)
from .metrics import QueueMetrics
from .names import QueueNames
from .remote_prefills import QueuedPrompt, RemotePrefillError, RemotePrefills
from .thresholds import PrefillThresholds, Thresholds

__all__ = [
    "ComputedPrompt",
    "PrefillConsumer",
    "PrefillQueueConfig",
    "PrefillThresholds",
    "PromptComputer",
    "QueueMessageError",
    "QueueMetrics",
    "QueueNames",
    "QueuedPrompt",
    "RemotePrefillError",
    "RemotePrefillRequest",
    "RemotePrefills",
    "Thresholds",
    "encode_request",
    "read_request",
]
