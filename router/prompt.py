"""A prompt as the index and the slots know it. Made by kv_router.py for each request."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..indexer.hashing import BlockMmInfos, Integers, block_hashes
from ..runtime.errors import InvalidRequestError


class Content(NamedTuple):
    """What besides the tokens decides whether two prompts share a cache."""

    block_mm_infos: BlockMmInfos | None = None
    lora_name: str | None = None
    cache_namespace: str | None = None


class Prompt(NamedTuple):
    """`isl` tokens; the hashes of their full blocks are None where nobody asks for them."""

    isl: int
    local: npt.NDArray[np.uint64] | None
    sequence: npt.NDArray[np.uint64] | None


def prompt_length(token_ids: Integers) -> int:
    """Tokens of a prompt; InvalidRequestError if it has none, or no length."""
    try:
        isl = len(token_ids)  # type: ignore[arg-type]  # anything sized will do
    except TypeError:
        raise InvalidRequestError("token_ids has no length", field="token_ids") from None
    if isl == 0:
        raise InvalidRequestError("empty prompt", field="token_ids")
    return isl


def hash_prompt(token_ids: Integers, block_size: int, content: Content) -> npt.NDArray[np.uint64]:
    """Local hashes of the full blocks; InvalidRequestError if a token is no u32."""
    try:
        return block_hashes(
            token_ids,
            block_size,
            block_mm_infos=content.block_mm_infos,
            lora_name=content.lora_name,
            cache_namespace=content.cache_namespace,
        )
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"token_ids: {error}", field="token_ids") from error
