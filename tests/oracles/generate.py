"""Plain twins of the kernels that read GenerateRequests, and read and write GenerateResponses:
protobuf parses or serializes, and the fields are read off or set."""

from collections.abc import Sequence
from typing import Any

from dynamo_router.workers.trtllm_proto import pb


def expected(message: Any) -> tuple[Any, ...]:
    """What the kernel must say of this message, its tokens as a list."""
    tokens = list(message.tokenized.input_token_ids)
    return (
        message.request_id,
        tokens,
        max(tokens, default=0),
        message.max_tokens,
        message.sampling_config.num_return_sequences,
        message.lora_config.task_id if message.HasField("lora_config") else None,
        message.cache_salt_id if message.HasField("cache_salt_id") else None,
        message.HasField("multimodal_input") or message.HasField("prompt_tuning_config"),
        message.streaming,
        message.HasField("kv_cache_retention"),
        message.HasField("disaggregated_params"),
    )


def expected_answer(message: Any) -> tuple[bool | None, int, int, int]:
    """The same of an answer."""
    kind = message.WhichOneof("response")
    if kind is None:
        return None, 0, 0, 0
    part = getattr(message, kind)
    whole = kind == "complete"
    tokens = part.output_token_ids if whole else part.token_ids
    return whole, len(tokens), part.completion_tokens, part.cached_tokens


def expected_progress(message: Any) -> bytes | int:
    """What its engine said of how far it is."""
    if message.complete.finish_reason:
        return bytes(message.complete.finish_reason.encode())
    return int(message.chunk.completion_tokens)


def written_chunk(
    request_id: str, tokens: Sequence[int], prompt_tokens: int, completion_tokens: int, cached: int
) -> bytes:
    """A response that brings more tokens."""
    part = pb.GenerateStreamChunk(
        token_ids=tokens,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached,
    )
    data: bytes = pb.GenerateResponse(request_id=request_id, chunk=part).SerializeToString()
    return data


def written_complete(
    request_id: str,
    tokens: Sequence[int],
    reason: str,
    matched: int | str | None,
    prompt_tokens: int,
    cached: int,
) -> bytes:
    """A response that ends an answer. A text that matched is not empty."""
    part = pb.GenerateComplete(
        output_token_ids=tokens,
        finish_reason=reason,
        matched_token_id=matched if isinstance(matched, int) else None,
        prompt_tokens=prompt_tokens,
        completion_tokens=len(tokens),
        cached_tokens=cached,
    )
    if isinstance(matched, str) and matched:
        part.matched_stop_str = matched
    data: bytes = pb.GenerateResponse(request_id=request_id, complete=part).SerializeToString()
    return data
