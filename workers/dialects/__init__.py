"""How is an engine called? What any client of one is, and those of other dialects than trtllm."""

from typing import TYPE_CHECKING

from ...base.lazy_names import lazy_names
from ..channels import EngineCall
from ._plain_chunk import plain_chunk, plain_end
from ._token_ids import encode_generate, pack_tokens, split_tokens, unpack_tokens

if TYPE_CHECKING:
    from .dynamo_client import DynamoClient
    from .engine_client import (
        DP_RANK_KEY,
        AnyJson,
        EngineClient,
        ForwardingClient,
        rank_metadata,
    )
    from .failed_call import FailedCall, failure_of
    from .handoff import (
        CONTEXT_ONLY,
        for_decode,
        for_prefill,
        for_reading,
        given_handoff,
        handoff_of,
        leg_fields,
        with_handoff,
    )
    from .logit_bias import bias_of, encode_bias
    from .openai_client import OpenAiClient
    from .openai_errors import error_of
    from .openai_facts import ServedModel, sglang_facts
    from .sse import EventReader
    from .stated import with_stated
    from .trtllm_answer import (
        MAX_TOKENS,
        TokenLogprob,
        TrtllmAnswer,
        by_logprob,
        check_length,
        check_request,
        refuse,
        set_cached,
    )

# What needs protobuf or an HTTP client is imported by its first user.
_HANDOFF = """CONTEXT_ONLY for_decode for_prefill for_reading given_handoff handoff_of leg_fields
    with_handoff"""
_ANSWER = """MAX_TOKENS TokenLogprob TrtllmAnswer by_logprob check_length check_request refuse
    set_cached"""
_CLIENT = "AnyJson DP_RANK_KEY EngineClient ForwardingClient rank_metadata"
__getattr__ = lazy_names(
    __name__,
    {
        "DynamoClient": ".dynamo_client",
        "OpenAiClient": ".openai_client",
        "EventReader": ".sse",
        "error_of": ".openai_errors",
        **dict.fromkeys(("bias_of", "encode_bias"), ".logit_bias"),
        **dict.fromkeys(("FailedCall", "failure_of"), ".failed_call"),
        **dict.fromkeys(("ServedModel", "sglang_facts"), ".openai_facts"),
        "with_stated": ".stated",
        **dict.fromkeys(_ANSWER.split(), ".trtllm_answer"),
        **dict.fromkeys(_CLIENT.split(), ".engine_client"),
        **dict.fromkeys(_HANDOFF.split(), ".handoff"),
    },
)
