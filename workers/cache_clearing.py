"""Clearing an engine's cache: the call, in each dialect that has one.

Not in trtllm.TrtllmService: a method of its own, without a message either way. An engine that does
not know it answers UNIMPLEMENTED, as gRPC servers do. Dynamo's workers have an endpoint for it.
"""

from typing import Any

from ..base.errors import WorkerError

CLEAR_METHOD = "/dynamo_router.v1.EngineCache/ClearKvBlocks"
CLEAR_ENDPOINT = "clear_kv_blocks"
"""Of Dynamo's workers, beside `generate`."""
CLEARED = {"status": "success", "message": "KV cache cleared"}
_LONGEST_TEXT = 200


def check_cleared(answer: Any) -> None:
    """WorkerError, with the worker's words, if its endpoint answers that it did not clear."""
    if not isinstance(answer, dict) or answer.get("status") != "success":
        text = answer.get("message") if isinstance(answer, dict) else answer
        raise WorkerError(f"not cleared: {text!s:.{_LONGEST_TEXT}}")
