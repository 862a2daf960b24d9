"""Plain twins of the kernels that read GenerateRequests and GenerateResponses: protobuf parses, and
the fields are read off."""

from typing import Any


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
