"""What routing needs to know of a trtllm.GenerateRequest, which itself travels on as bytes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from xxhash import xxh3_64_hexdigest

from ..runtime.errors import InvalidRequestError
from ..workers.trtllm_proto import pb

# Field 1, length-delimited: request_id.
_REQUEST_ID_TAG = b"\x0a"


@dataclass(slots=True)
class GenerateFacts:
    """The parts of a request that decide where it goes.

    `lora_name` and `cache_namespace` select the hash space of its blocks, as in block hashing.
    `sequences` is how many answers it asks for.
    """

    request_id: str
    token_ids: npt.NDArray[np.uint32]
    max_tokens: int
    lora_name: str | None
    cache_namespace: str | None
    sequences: int


def read_generate(body: bytes) -> GenerateFacts:
    """Read a serialized GenerateRequest; InvalidRequestError if it is none or has no prompt."""
    try:
        message = pb.GenerateRequest.FromString(body)
    except DecodeError:
        raise InvalidRequestError("the request is no trtllm.GenerateRequest") from None
    # numpy reads the message's own memory: no Python int is made per token.
    token_ids = np.array(message.tokenized.input_token_ids, dtype=np.uint32)
    if not token_ids.size:
        raise InvalidRequestError("empty prompt: tokenized.input_token_ids has no token id")
    lora = message.HasField("lora_config")
    return GenerateFacts(
        request_id=message.request_id,
        token_ids=token_ids,
        max_tokens=message.max_tokens,
        lora_name=str(message.lora_config.task_id) if lora else None,
        cache_namespace=_namespace(message),
        sequences=message.sampling_config.num_return_sequences or 1,
    )


def with_request_id(body: bytes, request_id: str) -> bytes:
    """The serialized request under another id.

    Of a field that comes twice the last one counts, so the rest stays as it is.
    """
    encoded = request_id.encode()
    return b"".join((body, _REQUEST_ID_TAG, _varint(len(encoded)), encoded))


def _namespace(message: Any) -> str | None:
    """What else the content of this prompt's KV blocks depends on, beside tokens and LoRA."""
    salt = str(message.cache_salt_id) if message.HasField("cache_salt_id") else None
    images = message.multimodal_input.image_data
    table = message.prompt_tuning_config.embedding_table
    if not images and not table:
        return salt
    # Where in the prompt an image stands is the engine's knowledge, so the whole prompt is kept
    # apart: overlap with prompts of other images is missed, never invented.
    content = xxh3_64_hexdigest(b"".join((table, *map(_framed, images))))
    return f"{salt or ''}/{content}"


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
