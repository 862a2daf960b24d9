"""How is an engine called? What any client of one is, and those of other dialects than trtllm."""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from ..channels import EngineCall
from ._plain_chunk import plain_chunk, plain_end
from ._token_ids import encode_generate, split_tokens

if TYPE_CHECKING:
    from .dynamo_client import DynamoClient
    from .engine_client import (
        DP_RANK_KEY,
        AnyJson,
        EngineClient,
        ForwardingClient,
        rank_metadata,
    )
    from .handoff import (
        CONTEXT_ONLY,
        for_decode,
        for_prefill,
        given_handoff,
        handoff_of,
        with_handoff,
    )
    from .logit_bias import bias_of, encode_bias
    from .openai_client import OpenAiClient
    from .openai_errors import error_of
    from .sse import EventReader
    from .trtllm_answer import TokenLogprob, TrtllmAnswer

# What needs protobuf or an HTTP client is imported by its first user.
_HANDOFF = "CONTEXT_ONLY for_decode for_prefill given_handoff handoff_of with_handoff"
_CLIENT = "AnyJson DP_RANK_KEY EngineClient ForwardingClient rank_metadata"
__getattr__ = lazy_names(
    __name__,
    {
        "DynamoClient": ".dynamo_client",
        "OpenAiClient": ".openai_client",
        "EventReader": ".sse",
        "error_of": ".openai_errors",
        **dict.fromkeys(("bias_of", "encode_bias"), ".logit_bias"),
        **dict.fromkeys(("TokenLogprob", "TrtllmAnswer"), ".trtllm_answer"),
        **dict.fromkeys(_CLIENT.split(), ".engine_client"),
        **dict.fromkeys(_HANDOFF.split(), ".handoff"),
    },
)
