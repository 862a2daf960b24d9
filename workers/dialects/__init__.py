"""How is an engine called? What any client of one is, and those of other dialects than trtllm."""

from ..channels import EngineCall
from ._plain_chunk import plain_chunk
from ._token_ids import encode_generate
from .dynamo_client import DynamoClient, DynamoRoute
from .engine_client import DP_RANK_KEY, EngineClient, rank_metadata
from .handoff import (
    CONTEXT_ONLY,
    for_decode,
    for_prefill,
    given_handoff,
    handoff_of,
    with_handoff,
)
from .openai_client import OpenAiClient
from .trtllm_answer import TokenLogprob, TrtllmAnswer

__all__ = [
    "CONTEXT_ONLY",
    "DP_RANK_KEY",
    "DynamoClient",
    "DynamoRoute",
    "EngineCall",
    "EngineClient",
    "OpenAiClient",
    "TokenLogprob",
    "TrtllmAnswer",
    "encode_generate",
    "for_decode",
    "for_prefill",
    "given_handoff",
    "handoff_of",
    "plain_chunk",
    "rank_metadata",
    "with_handoff",
]
